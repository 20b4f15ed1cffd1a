"""Settings of the MPS service: flags, each with an environment variable, named as those of the node plugin."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_gpu.flags import Flags, new_parser, seconds
from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.logs import LEVELS
from dra_gpu.metrics.address import Address, http_flags
from dra_gpu.mps.directories import GpuDirectories
from dra_gpu.mps.service import MpsError
from dra_gpu.mps.wire import SOCKET_NAME

DEFAULT_DIRECTORY = Path("/run/dra-gpu/mps")
_A_GPU, _A_SHARE = "0" * 8, "s_" + "0" * 32  # as long as those there will be


@dataclass(frozen=True, slots=True)
class Settings:
    """How the MPS service runs.

    Attributes:
        driver_root: the driver installation as this process sees it.
        directory: state, socket, and each GPU's directories; containers mount parts of it, so the host and this process
            must know it by the same path.
        boot_id_file: tells one boot from the next.
        own_shm: each daemon gets its GPU's file system in memory at /dev/shm (needs CAP_SYS_ADMIN).
        settle_period: seconds between two comparisons of what is with what was asked for.
        http_endpoint: where metrics and health are served; None for nowhere.
        metrics_path: of the metrics there.
        log_level: one of debug, info, warning, error.
    """

    driver_root: Path
    directory: Path
    boot_id_file: Path
    own_shm: bool
    settle_period: float
    http_endpoint: Address | None
    metrics_path: str
    log_level: str

    @property
    def socket(self) -> Path:
        """Where the node plugin calls."""
        return self.directory / SOCKET_NAME


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the settings.

    Exits the process with a message when one is missing or wrong, as argparse does.
    """
    parser = new_parser(
        "dra-gpu mps", "dra-gpu mps [options]", "Runs NVIDIA's MPS control daemons of this node's shared GPUs."
    )
    flags = Flags(parser, environment)
    flags.add(
        "--driver-root", "NVIDIA_DRIVER_ROOT", Path("/"), "driver installation, by its path on the host", type=Path
    )
    flags.add(
        "--container-driver-root",
        "DRIVER_ROOT_CTR_PATH",
        None,
        "the same as this process sees it (default: by the same path)",
        type=Path,
    )
    flags.add("--directory", "MPS_DIRECTORY", DEFAULT_DIRECTORY, "state, sockets and pipes; a short path", type=Path)
    flags.add(
        "--boot-id-file", None, Path("/proc/sys/kernel/random/boot_id"), "tells one boot from the next", type=Path
    )
    flags.add(
        "--own-shm",
        None,
        True,  # noqa: FBT003 - a default among others
        "give each daemon a file system of its GPU's own at /dev/shm; needs CAP_SYS_ADMIN (default: yes)",
        action=argparse.BooleanOptionalAction,
    )
    flags.add("--settle-period", None, 60.0, "seconds between two looks at the daemons", type=seconds)
    http_flags(flags.add)
    flags.add("--log-level", "LOG_LEVEL", "info", "what to log", choices=LEVELS)
    found = parser.parse_args(arguments)
    directory = Path(os.path.normpath(found.directory))
    if not directory.is_absolute():
        parser.error(f"--directory {directory} must be absolute: containers mount what is below it")
    try:
        GpuDirectories(directory / _A_GPU).of_share(MpsProtocol.NAMESPACE, _A_SHARE)
    except MpsError as error:
        parser.error(str(error))
    return Settings(
        driver_root=found.container_driver_root or found.driver_root,
        directory=directory,
        boot_id_file=found.boot_id_file,
        own_shm=found.own_shm,
        settle_period=found.settle_period,
        http_endpoint=found.http_endpoint,
        metrics_path=found.metrics_path,
        log_level=found.log_level,
    )
