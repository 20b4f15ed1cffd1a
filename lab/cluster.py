"""Brings the lab up and down: the order of steps, their deadlines, and what is left behind (nothing but logs)."""

import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_gpu_sim.mounts import unmount_all
from lab import build, controlplane, images, node, packages
from lab.api import Api
from lab.cgroups import Cgroups
from lab.errors import LabError
from lab.layout import Layout
from lab.processes import Process
from lab.progress import Progress
from lab.settings import Settings, boot_id
from lab.traces import remove_outside_traces

_NODES_READY_WITHIN_SECONDS = 180.0
_LOCK_WITHIN_SECONDS = 180.0


def up(layout: Layout, nodes: int, progress: Progress) -> Settings:
    """Build what is missing and start a cluster of `nodes` nodes; a running one with as many is kept.

    Raises:
        LabError: a step failed or did not end in time; the text names it and its log. All is stopped again.
    """
    if os.geteuid() != 0:
        raise LabError("the lab needs root: kubelet and containerd make mounts, cgroups and network namespaces")
    packages.install_missing(progress)
    programs = build.build(progress)
    with _lock(layout):
        running = Settings.load(layout)
        if running is not None and running.nodes == nodes and not dead_processes(layout, running):
            progress.say(f"a cluster of {_nodes(nodes)} is up already: {layout.state}")
            return running
        _clean(layout, progress)
        settings = Settings.new(nodes)
        try:
            _start(layout, settings, programs, progress)
        except BaseException:
            _clean(layout, progress)
            raise
    return settings


def down(layout: Layout, progress: Progress) -> None:
    """Stop everything that `up` started, also if `up` was killed, and remove all but the logs."""
    with _lock(layout):
        _clean(layout, progress)


def processes(layout: Layout, settings: Settings) -> list[Process]:
    """Return all processes of a lab in the order in which they are stopped."""
    of_nodes = [
        process for one in settings.all_nodes(layout) for process in (layout.kubelet(one), layout.containerd(one))
    ]
    return [*of_nodes, *(layout.process(name) for name in (controlplane.SERVICE, *reversed(controlplane.NAMES)))]


def dead_processes(layout: Layout, settings: Settings) -> list[str]:
    """Return the names of the processes that should run and do not."""
    if settings.boot != boot_id():
        return [process.name for process in processes(layout, settings)]
    return [process.name for process in processes(layout, settings) if process.running() is None]


def nodes_ready(api: Api) -> list[str]:
    """Return the names of the nodes that are Ready."""
    ready = []
    for item in api.items("/api/v1/nodes"):
        conditions = item.get("status", {}).get("conditions") or []
        if any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions):
            ready.append(item["metadata"]["name"])
    return sorted(ready)


def _start(layout: Layout, settings: Settings, programs: Path, progress: Progress) -> None:
    settings.save(layout)
    shutil.rmtree(layout.logs, ignore_errors=True)
    all_nodes = settings.all_nodes(layout)
    cgroups = Cgroups.detect()
    with progress.step(f"prepare {layout.state} (cgroup {'v2' if cgroups.unified else 'v1'})"):
        controlplane.prepare(layout, settings)
        for one in all_nodes:
            node.prepare(layout, settings, one, cgroups, programs)
    with progress.step("start etcd and containerd"):
        for one in all_nodes:
            node.start_containerd(layout, one, cgroups, programs)
        controlplane.start_etcd(layout, settings, programs)
    with progress.step("start kube-apiserver"):
        controlplane.start_apiserver(layout, settings, programs)
        controlplane.start_service(layout, settings)
    with progress.step("start kube-controller-manager, kube-scheduler and kubelet"):
        controlplane.start_controllers(layout, settings, programs)
        for one in all_nodes:
            node.start_kubelet(layout, one, programs)
    with progress.step("make and import the container images"):
        archive = layout.state / "images.tar"
        images.write_archive([images.pause_image(layout.state), images.busybox_image()], archive)
        for one in all_nodes:
            node.import_images(layout, one, archive, programs)
    with progress.step("wait for controllers and nodes"):
        controlplane.wait_for_controllers(layout, settings)
        _wait_for_nodes(layout, settings)
    progress.say(f"up: Kubernetes with {_nodes(settings.nodes)}; export KUBECONFIG={layout.kubeconfig}")


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _wait_for_nodes(layout: Layout, settings: Settings) -> None:
    api = controlplane.admin_api(layout, settings)
    wanted = [one.name for one in settings.all_nodes(layout)]
    deadline = time.monotonic() + _NODES_READY_WITHIN_SECONDS
    while (ready := nodes_ready(api)) != sorted(wanted):
        dead = dead_processes(layout, settings)
        if dead:
            process = layout.process(dead[0])
            raise LabError(f"{process.name} ended; its log {process.log} ends with:\n{process.tail()}")
        if time.monotonic() > deadline:
            missing = sorted(set(wanted) - set(ready))
            tail = layout.process(f"{missing[0]}-kubelet").tail()
            raise LabError(
                f"not Ready after {_NODES_READY_WITHIN_SECONDS:.0f} s: {', '.join(missing)}; its kubelet says:\n{tail}"
            )
        time.sleep(0.2)


def _clean(layout: Layout, progress: Progress) -> None:
    settings = Settings.load(layout)
    if settings is None and not layout.state.exists():
        return
    with progress.step("stop what runs and remove its mounts and cgroups"):
        records = layout.state / "pids"
        names = [file.name for file in records.iterdir()] if records.is_dir() else []
        same_boot = settings is None or settings.boot == boot_id()
        # First those that start others again, last etcd; an unknown name (a plugin of a test) goes with the kubelets.
        for name in sorted(names, key=_stop_order):
            if same_boot:
                layout.process(name).stop(signal.SIGTERM, seconds=5.0)
        if same_boot:
            cgroups = Cgroups.detect()
            if cgroups.exists(layout.cgroup):
                cgroups.kill(layout.cgroup)
                cgroups.remove(layout.cgroup)
        for one in settings.all_nodes(layout) if settings else []:
            controlplane.remove_address(one.address)
        controlplane.remove_address(layout.apiserver_service)
        unmount_all(layout.state)
        remove_outside_traces(layout)
        for entry in list(layout.state.iterdir()):
            if entry == layout.logs:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _stop_order(name: str) -> tuple[int, str]:
    if name in controlplane.NAMES:
        return (2 + len(controlplane.NAMES) - controlplane.NAMES.index(name), name)
    return (1 if name.endswith("-containerd") else 0, name)


@contextmanager
def _lock(layout: Layout) -> Iterator[None]:
    """Let one `up` or `down` work at a time."""
    layout.state.parent.mkdir(parents=True, exist_ok=True)
    path = layout.state.with_name(f"{layout.state.name}.lock")
    deadline = time.monotonic() + _LOCK_WITHIN_SECONDS
    with path.open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"another up or down holds {path} for more than {_LOCK_WITHIN_SECONDS:.0f} s"
                    ) from None
                time.sleep(0.2)
        yield
