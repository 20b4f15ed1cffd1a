"""Settings of the webhook: flags, each with an environment variable; NVIDIA's names where the meaning is the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_gpu.flags import Flags, new_parser, seconds
from dra_gpu.logs import LEVELS
from dra_gpu.metrics.address import Address, http_flags
from dra_gpu.webhook.rotation import Place

_DEFAULT_PORT = 8443
_PORTS = range(65536)


@dataclass(frozen=True, slots=True)
class Settings:
    """How the webhook runs.

    Attributes:
        port: where it listens, on all addresses; 0 takes a free one.
        files: certificate and key that somebody else renews; None where it has a certificate of its own.
        place: where the certificate of its own is kept.
        kubeconfig: how to reach the cluster; None inside a pod.
        http_endpoint: where metrics are served without TLS; None for nowhere.
        metrics_path: of the metrics there.
        drain_seconds: for which it goes on serving after it was asked to stop; API servers learn of that meanwhile.
        log_level: one of debug, info, warning, error.
    """

    port: int
    files: tuple[Path, Path] | None
    place: Place
    kubeconfig: Path | None
    http_endpoint: Address | None
    metrics_path: str
    drain_seconds: float
    log_level: str


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the settings.

    Exits the process with a message when one is missing or wrong, as argparse does.
    """
    parser = new_parser(
        "dra-gpu webhook",
        "dra-gpu webhook [options]",
        "Checks claims, templates, device classes and ComputeDomains when they are created.",
    )
    flags = Flags(parser, environment)
    flags.add("--port", "PORT", _DEFAULT_PORT, "where it listens, with TLS", type=int)
    flags.add("--tls-cert-file", "TLS_CERT_FILE", None, "certificate of cert-manager or your own, in PEM", type=Path)
    flags.add("--tls-private-key-file", "TLS_PRIVATE_KEY_FILE", None, "its key, in PEM", type=Path)
    flags.add("--namespace", "NAMESPACE", "dra-gpu", "of the Service and the Secret")
    flags.add("--service", "SERVICE", "dra-gpu-webhook", "Service under which API servers call")
    flags.add("--secret", "SECRET", "dra-gpu-webhook-tls", "Secret with the certificate of its own, kept by itself")
    flags.add(
        "--configuration",
        "CONFIGURATION",
        "dra-gpu-webhook",
        "ValidatingWebhookConfiguration that gets the caBundle of that certificate",
    )
    flags.add("--kubeconfig", "KUBECONFIG", None, "how to reach the cluster (default: as a pod)", type=Path)
    http_flags(flags.add)
    flags.add("--drain", None, 5.0, "seconds that it goes on serving after SIGTERM", type=seconds)
    flags.add("--log-level", "LOG_LEVEL", "info", "what to log", choices=LEVELS)
    found = parser.parse_args(arguments)
    if found.port not in _PORTS:
        parser.error(f"--port {found.port} is none: write one from 0 to {_PORTS[-1]}")
    if (found.tls_cert_file is None) is not (found.tls_private_key_file is None):
        parser.error("--tls-cert-file and --tls-private-key-file belong together: give both, or none")
    return Settings(
        port=found.port,
        files=(found.tls_cert_file, found.tls_private_key_file) if found.tls_cert_file is not None else None,
        place=Place(found.namespace, found.secret, found.service, found.configuration),
        kubeconfig=found.kubeconfig,
        http_endpoint=found.http_endpoint,
        metrics_path=found.metrics_path,
        drain_seconds=found.drain,
        log_level=found.log_level,
    )
