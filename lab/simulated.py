"""The simulated GPUs of a lab node: made by `dra-gpu-sim` in a directory below the node's own."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

_SIMULATOR_WITHIN_SECONDS = 180.0
#: Where the simulator's state is in a container, for the nvidia-smi stand-in and the workload client.
STATE_IN_CONTAINER = "/run/dra-gpu-sim"
#: The program that attaches to a GPU, allocates and holds, as a CUDA program would.
CLIENT_IN_CONTAINER = "/usr/bin/cuda-client"


@dataclass(frozen=True)
class SimulatedGpus:
    """One root directory of the simulator with its parts."""

    root: Path

    @classmethod
    def create(cls, root: Path, *, profile: str, gpus: int, driver_version: str = "") -> "SimulatedGpus":
        """Make `gpus` GPUs of `profile` below `root`, in place of what was there; "" is the profile's own driver.

        Raises:
            LabError: the simulator refuses; the text has its words.
        """
        if root.exists():
            shutil.rmtree(root)
        simulated = cls(root)
        driver = ("--driver-version", driver_version) if driver_version else ()
        simulated._run("create", "--profile", profile, "--gpus", str(gpus), *driver, str(root))
        simulated.extra_edits.write_text(json.dumps(simulated._edits(), indent=1))
        return simulated

    @property
    def extra_edits(self) -> Path:
        """The additional container edits: the simulator's state, and the program that plays a workload."""
        return self.root / "extra-edits.json"

    def inject(self, *arguments: str) -> None:
        """Run `dra-gpu-sim inject` on this root."""
        self._run("inject", str(self.root), *arguments)

    def clear(self, *arguments: str) -> None:
        """Run `dra-gpu-sim clear` on this root: takes faults away."""
        self._run("clear", str(self.root), *arguments)

    def _edits(self) -> dict[str, object]:
        return {
            "containerEdits": {
                "env": [f"DRA_GPU_SIM_ROOT={STATE_IN_CONTAINER}"],
                "mounts": [
                    {
                        "hostPath": str(self.root / "state"),
                        "containerPath": f"{STATE_IN_CONTAINER}/state",
                        "options": ["rw", "nosuid", "nodev", "bind"],
                        "required": True,
                    },
                    {
                        "hostPath": str(self.root / "bin" / "cuda-client"),
                        "containerPath": CLIENT_IN_CONTAINER,
                        "options": ["ro", "nosuid", "nodev", "bind"],
                        "required": True,
                    },
                ],
            }
        }

    def _run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "dra_gpu_sim.cli", *arguments]
        result = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=_SIMULATOR_WITHIN_SECONDS,
            stdin=subprocess.DEVNULL,
        )
        if result.returncode != 0:
            raise LabError(
                f"dra-gpu-sim {' '.join(arguments)} failed: {(result.stderr or result.stdout).strip()[-1500:]}"
            )
