"""A certificate that others renew in files: cert-manager's, or an administrator's."""

import asyncio
from pathlib import Path

import structlog

from dra_gpu.apiserver.clock import Clock, SystemClock
from dra_gpu.webhook.certificates import KeyPair
from dra_gpu.webhook.serving import CertificateError, Serving

LOOK_SECONDS = 10.0  # the kubelet swaps a mounted Secret's files a minute after it changed

_log = structlog.get_logger(__name__)


class CertificateFiles:
    """Shows what two PEM files hold, and follows them.

    Args:
        certificate: the certificate and its chain.
        key: its key.
        serving: takes the pair.
        clock: for the time between two looks.
    """

    def __init__(self, certificate: Path, key: Path, serving: Serving, clock: Clock | None = None) -> None:
        self._certificate = certificate
        self._key = key
        self._serving = serving
        self._clock = clock or SystemClock()
        self._told = ""

    async def run(self) -> None:
        """Follow the files for ever."""
        while True:
            await asyncio.to_thread(self.look)
            await self._clock.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Read the files now. What cannot be used is told once, and what was shown before stays."""
        try:
            self._serving.install(KeyPair(self._certificate.read_bytes(), self._key.read_bytes()))
        except (OSError, CertificateError) as error:
            if str(error) != self._told:
                _log.error(
                    "the certificate's files cannot be used; they are read again by themselves",
                    files=[str(self._certificate), str(self._key)],
                    reason=str(error),
                )
            self._told = str(error)
        else:
            self._told = ""
