"""The driver on a whole lab: the manifests that users apply, a controller, and a plugin with GPUs on every node."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from lab import controlplane
from lab.api import Api, Json, path_of
from lab.build import bin_dir
from lab.controller import controller_process, start_controller, stop_controller
from lab.driver import DriverInstance
from lab.errors import LabError
from lab.identity import write_credentials
from lab.layout import Layout, Node
from lab.mps import mps_process, stop_mps
from lab.processes import Process
from lab.progress import Progress
from lab.settings import Settings
from lab.simulated import SimulatedGpus

_DEPLOY = Path(__file__).parent.parent / "deploy"
# What a cluster needs for plugins that run as host processes. The chart and what belongs to its pods lie beside them.
# rbac/node.yaml makes the namespace that the others are in.
_MANIFESTS = ("crds.yaml", "rbac/node.yaml", "rbac", "deviceclasses.yaml", "policies.yaml")
_APPLY_WITHIN_SECONDS = 120.0
_STOP_WITHIN_SECONDS = 30.0
_PUBLISH_WITHIN_SECONDS = 90.0
_DRIVER = "gpu.nvidia.com"
_SLICES = path_of("resource.k8s.io/v1", "resourceslices")


def apply_manifests(layout: Layout) -> None:
    """Apply the plain manifests of `deploy/`: device classes, policies and rights.

    Raises:
        LabError: the server refuses one; the text has kubectl's words.
    """
    kubectl: list[str | Path] = [bin_dir() / "kubectl", f"--kubeconfig={layout.kubeconfig}"]
    files: list[str | Path] = [part for name in _MANIFESTS for part in ("-f", _DEPLOY / name)]
    command = [*kubectl, "apply", *files]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_APPLY_WITHIN_SECONDS)
    if result.returncode != 0:
        raise LabError(f"kubectl apply -f {_DEPLOY}: {result.stderr.strip()}")


def start_drivers(layout: Layout, settings: Settings, *, profile: str, gpus: int, progress: Progress) -> None:
    """Give every node `gpus` simulated GPUs and a plugin; one that runs already stays. All are published then.

    Raises:
        LabError: a step failed, or a node's GPUs are not published in time; the text has the plugin's last words.
    """
    running = {process.name for process in drivers(layout) if process.running()}
    with progress.step("apply deploy/"):
        apply_manifests(layout)
    api = controlplane.admin_api(layout, settings)
    for node in settings.all_nodes(layout):
        if any(name.startswith(f"{node.name}-plugin-") for name in running):
            progress.say(f"{node.name} keeps its GPUs and the plugin that runs (`python -m lab driver stop` ends them)")
            continue
        with progress.step(f"simulate {gpus} x {profile}, start the MPS service and the plugin on {node.name}"):
            stop_mps(layout, node)
            simulated = SimulatedGpus.create(node.dir / "sim", profile=profile, gpus=gpus)
            write_credentials(layout, api, node)
            plugin = DriverInstance.new(layout, node, simulated)
            plugin.mps.start()
            plugin.start()
    with progress.step("start the controller"):
        start_controller(layout, api)
    with progress.step("wait until the GPUs are published"):
        wait_published(layout, api, settings.all_nodes(layout))


def wait_published(layout: Layout, api: Api, nodes: Sequence[Node], within: float = _PUBLISH_WITHIN_SECONDS) -> None:
    """Wait until the GPUs of all nodes are there for the scheduler.

    Raises:
        LabError: a plugin ended, or its node's GPUs are not published within `within` seconds.
    """
    deadline = time.monotonic() + within
    for node in nodes:
        while not is_published(api.items(_SLICES, fieldSelector=f"spec.driver={_DRIVER},spec.nodeName={node.name}")):
            plugins = [one for one in drivers(layout) if one.name.startswith(f"{node.name}-plugin-")]
            words = "".join(f"\nthe end of {one.log}:\n{one.tail()}" for one in plugins)
            if not any(one.running() for one in plugins):
                raise LabError(f"the plugin of {node.name} has ended before it published the GPUs{words}")
            if time.monotonic() > deadline:
                raise LabError(f"the GPUs of {node.name} are not published after {within:.0f} s{words}")
            time.sleep(0.2)


def is_published(slices: Sequence[Json]) -> bool:
    """Tell whether all slices of a pool's newest generation are there."""
    pools = [one["spec"]["pool"] for one in slices]
    newest = max((pool["generation"] for pool in pools), default=0)
    wanted = [pool["resourceSliceCount"] for pool in pools if pool["generation"] == newest]
    return bool(wanted) and len(wanted) == wanted[0]


def stop_drivers(layout: Layout, progress: Progress) -> None:
    """End the controller and every plugin of the lab with SIGTERM, then the MPS services with their daemons."""
    if controller_process(layout).running() is not None:
        with progress.step("stop the controller"):
            stop_controller(layout)
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
