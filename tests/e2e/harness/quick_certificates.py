"""`dra-gpu` whose webhook replaces its certificate's authority when it is told to, and within seconds.

Run as a program by tests of rotation, which would otherwise take months. What is done, and in which order, is the same.
"""

import os
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from dra_gpu.__main__ import main
from dra_gpu.webhook import certificates, rotation
from dra_gpu.webhook.certificates import TlsMaterial

#: Names a file: once it exists, half of a life is a reason to renew.
TOLD = "RENEW_ONCE_THIS_EXISTS"
#: From the announcement of an authority to its first signature: much longer than API servers take to hear of it.
OVERLAP = timedelta(seconds=15)


def _when_told(file: Path) -> None:
    as_shipped = certificates.renewed

    def renewed(material: TlsMaterial, names: Sequence[str], now: datetime) -> TlsMaterial:
        if file.exists():
            certificates._RENEW_AT = 1 / 2
        return as_shipped(material, names, now)

    certificates.renewed = renewed


if __name__ == "__main__":
    certificates.OVERLAP = OVERLAP
    rotation.LOOK_SECONDS = 1.0
    _when_told(Path(os.environ[TOLD]))
    sys.exit(main())
