"""The driver on a whole lab: the manifests that users apply, and on every node simulated GPUs with one plugin."""

import subprocess
from pathlib import Path

from lab import controlplane
from lab.build import bin_dir
from lab.driver import DriverInstance
from lab.errors import LabError
from lab.identity import write_credentials
from lab.layout import Layout
from lab.mps import mps_process, stop_mps
from lab.processes import Process
from lab.progress import Progress
from lab.settings import Settings
from lab.simulated import SimulatedGpus

_DEPLOY = Path(__file__).parent.parent / "deploy"
_APPLY_WITHIN_SECONDS = 60.0
_STOP_WITHIN_SECONDS = 30.0


def apply_manifests(layout: Layout) -> None:
    """Apply `deploy/`: device classes, policies and the node plugin's rights.

    Raises:
        LabError: the server refuses one; the text has kubectl's words.
    """
    kubectl: list[str | Path] = [bin_dir() / "kubectl", f"--kubeconfig={layout.kubeconfig}"]
    command = [*kubectl, "apply", "--recursive", "-f", _DEPLOY]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_APPLY_WITHIN_SECONDS)
    if result.returncode != 0:
        raise LabError(f"kubectl apply -f {_DEPLOY}: {result.stderr.strip()}")


def start_drivers(layout: Layout, settings: Settings, *, profile: str, gpus: int, progress: Progress) -> None:
    """Give every node `gpus` simulated GPUs and a plugin; one that runs already stays."""
    running = {process.name for process in drivers(layout) if process.running()}
    with progress.step("apply deploy/"):
        apply_manifests(layout)
    api = controlplane.admin_api(layout, settings)
    for node in settings.all_nodes(layout):
        if any(name.startswith(f"{node.name}-plugin-") for name in running):
            progress.say(f"a plugin runs on {node.name} already")
            continue
        with progress.step(f"simulate {gpus} x {profile}, start the MPS service and the plugin on {node.name}"):
            stop_mps(layout, node)
            simulated = SimulatedGpus.create(node.dir / "sim", profile=profile, gpus=gpus)
            write_credentials(layout, api, node)
            plugin = DriverInstance.new(layout, node, simulated)
            plugin.mps.start()
            plugin.start()


def stop_drivers(layout: Layout, progress: Progress) -> None:
    """End every plugin of the lab with SIGTERM, then the MPS services with their daemons."""
    for process in drivers(layout):
        with progress.step(f"stop {process.name}"):
            process.stop(seconds=_STOP_WITHIN_SECONDS)
    settings = Settings.load(layout)
    for node in settings.all_nodes(layout) if settings else []:
        if mps_process(layout, node).running():
            with progress.step(f"stop the MPS service of {node.name}"):
                stop_mps(layout, node)


def drivers(layout: Layout) -> list[Process]:
    """Return the plugin processes on record."""
    records = layout.state / "pids"
    names = sorted(file.name for file in records.glob("*-plugin-*")) if records.is_dir() else []
    return [layout.process(name) for name in names if not name.endswith(".new")]
