"""Where a process serves its metrics: the flags, as NVIDIA's driver names them. Costs no import of Prometheus."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

_LAST_PORT = 65535
DEFAULT_METRICS_PATH = "/metrics"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; an empty host is every address of the machine."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `host:port`, `:port` or `[address]:port`.

        Raises:
            ValueError: it is none of these.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdecimal() or int(port) > _LAST_PORT:
            raise ValueError(f"{text!r} must be host:port or :port, such as :8080")
        if host.startswith("[") and host.endswith("]"):
            return cls(host[1:-1], int(port))
        if ":" in host:
            raise ValueError(f"{text!r}: an IPv6 address stands in brackets, such as [::1]:8080")
        return cls(host, int(port))


def http_flags(add: Callable[..., None]) -> None:
    """Add `--http-endpoint` and `--metrics-path`; `add` is that of `flags.Flags`."""
    add(
        "--http-endpoint",
        "HTTP_ENDPOINT",
        None,
        "where metrics, /healthz and /readyz are served, such as :8080 (default: nowhere)",
        type=_address,
    )
    add("--metrics-path", "METRICS_PATH", DEFAULT_METRICS_PATH, "path of the metrics there", type=_path)


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _path(text: str) -> str:
    if not text.startswith("/") or text in ("/healthz", "/readyz") or not text.isascii() or " " in text:
        raise argparse.ArgumentTypeError(f"{text!r} must be a path of its own, such as {DEFAULT_METRICS_PATH}")
    return text
