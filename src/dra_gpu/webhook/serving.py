"""The certificate that new connections are shown. Replaced while the server runs; connections that are open go on."""

import hashlib
import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from dra_gpu.webhook import certificates
from dra_gpu.webhook.certificates import KeyPair

_log = structlog.get_logger(__name__)


class CertificateError(ValueError):
    """A certificate and key cannot be used together. The message says why."""


class Serving:
    """TLS settings of a server whose certificate changes.

    Args:
        on_change: called with the end of each certificate, in seconds since 1970.
    """

    def __init__(self, on_change: Callable[[float], None] = lambda _: None) -> None:
        self._on_change = on_change
        self._shown = b""
        self.context = _new_context()
        _load(self.context, certificates.throwaway(datetime.now(UTC)))

    @property
    def ready(self) -> bool:
        """A real certificate is in use."""
        return bool(self._shown)

    def install(self, pair: KeyPair) -> bool:
        """Show a certificate from now on; tell whether it is another one than before.

        Raises:
            CertificateError: it cannot be used; what was shown before stays.
        """
        digest = hashlib.sha256(pair.certificate + b"\0" + pair.key).digest()
        if digest == self._shown:
            return False
        try:
            # A pair that does not match would leave the context in use with half of it.
            _load(_new_context(), pair)
            ends = certificates.expiry(pair)
            _load(self.context, pair)
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"the certificate and its key cannot be used: {error}") from error
        self._shown = digest
        self._on_change(ends.timestamp())
        _log.info("new connections are shown another certificate", ends=ends.isoformat())
        return True


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Load a pair from memory; the ssl module takes files only, and a key has no business on a disk."""
    descriptor = os.memfd_create("webhook-tls", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pair.certificate + b"\n" + pair.key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
