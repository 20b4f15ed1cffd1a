"""Settings of the node plugin: flags and environment variables, named as NVIDIA's driver names them where it has them.

Every path of the host can be set, so that the same program runs on a real node, in a container that sees the host under
other names, and on a simulated node.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.flags import Flags, new_parser, seconds
from dra_gpu.inventory.model import View
from dra_gpu.inventory.options import DEFAULT_VIEWS, ConsumableShares, consumable_shares
from dra_gpu.kubelet import sockets
from dra_gpu.metrics.address import Address, http_flags
from dra_gpu.node.health_settings import HealthSettings, add_health_flags, health_settings
from dra_gpu.node.logs import LEVELS

_VIEWS = (View.GPU, View.SHARED, View.MIG, View.SHARED_MIG, View.MONITOR)
_DRIVER_OF_VENDOR = {"nvidia": "gpu.nvidia.com"}
_NO_MPS = "none"
# Source: MIG User Guide r580, "MIG Device Names": compute slices, memory, and attributes such as +me.all, +gfx and -me.
_PROFILE = re.compile(r"[1-9]\d*g\.[1-9]\d*gb([+-][a-z]+(\.[a-z]+)*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Settings:
    """How one instance of the node plugin runs.

    Attributes:
        vendor: whose GPUs.
        node_name: name of the Node object; never the host's own name.
        pod_uid: this instance's pod; gives sockets of its own, so that two instances can overlap in an upgrade.
        kubeconfig: how to reach the API server; None inside a pod.
        driver_root: the vendor's driver installation.
        dev_root: directory of device nodes.
        sysfs_root: where sysfs is mounted.
        host_root: the host's root, if this process sees it.
        hook_program: the container toolkit's program, where it is in an unusual place.
        boot_id_file: tells one boot from the next.
        cdi_root: directory that the container runtime reads.
        plugins_dir: the kubelet's directory of plugin sockets and data.
        registrar_dir: the kubelet's directory of registration sockets.
        state_dir: this driver's data, shared by its instances.
        extra_edits: file with what every container gets in addition.
        proc_root: a procfs that shows the processes of the host.
        driver_proc_root: a procfs in which the driver shows the numbers of MIG instances.
        cgroup_root: where the unified cgroup hierarchy is mounted.
        mps_socket: socket of the MPS service, which need not be there yet; None where GPUs are not shared by MPS.
        views: the views to publish.
        mig_profiles: names of the MIG profiles to publish; None for the usual ones of each GPU.
        shared_mig_profiles: names of the MIG profiles of which fractions are published, too.
        numa_lists: publish `numaNode` as a list.
        consumable_shares: how several claims have one whole GPU or partition; None where each is one claim's alone.
        expected_gpus: how many GPUs the node should have; fewer are not published as final. None: whatever is found.
        rescan_period: seconds between two looks at the GPUs.
        gpu_timeout: seconds after which a GPU that does not answer is left out.
        reconcile_period: seconds between two comparisons with the API server.
        health: how GPUs are judged.
        http_endpoint: where metrics and health are served; None for nowhere.
        metrics_path: of the metrics there.
        stay: whoever has left the node waits to be ended.
        log_level: one of debug, info, warning, error.
    """

    vendor: str
    node_name: str
    pod_uid: str
    kubeconfig: Path | None
    driver_root: HostDirectory
    dev_root: HostDirectory
    sysfs_root: Path
    host_root: HostDirectory | None
    hook_program: PurePosixPath | None
    boot_id_file: Path
    cdi_root: Path
    plugins_dir: Path
    registrar_dir: Path
    state_dir: Path
    extra_edits: Path | None
    proc_root: Path
    driver_proc_root: Path
    cgroup_root: Path
    mps_socket: Path | None
    views: tuple[View, ...]
    mig_profiles: tuple[str, ...] | None
    shared_mig_profiles: tuple[str, ...]
    numa_lists: bool
    consumable_shares: ConsumableShares | None
    expected_gpus: int | None
    rescan_period: float
    gpu_timeout: float
    reconcile_period: float
    health: HealthSettings
    http_endpoint: Address | None
    metrics_path: str
    stay: bool
    log_level: str


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the settings; a flag wins over its environment variable.

    Exits the process with a message when a setting is missing or wrong, as argparse does.
    """
    parser = _parser(environment)
    found = parser.parse_args(arguments)
    if not found.node_name:
        parser.error("--node-name or NODE_NAME is required: the name of this node's Node object (downward API)")
    state_dir = found.state_dir or found.kubelet_plugins_dir / _DRIVER_OF_VENDOR[found.vendor]
    return Settings(
        vendor=found.vendor,
        node_name=found.node_name,
        pod_uid=found.pod_uid,
        kubeconfig=found.kubeconfig,
        driver_root=_two_names(found.driver_root, found.container_driver_root),
        dev_root=_two_names(found.dev_root, found.container_dev_root),
        sysfs_root=found.sysfs_root,
        host_root=_two_names(Path("/"), found.host_root) if found.host_root else None,
        hook_program=PurePosixPath(found.nvidia_cdi_hook_path) if found.nvidia_cdi_hook_path else None,
        boot_id_file=found.boot_id_file,
        cdi_root=found.cdi_root,
        plugins_dir=found.kubelet_plugins_dir,
        registrar_dir=found.kubelet_registrar_dir,
        state_dir=state_dir,
        extra_edits=found.extra_edits,
        proc_root=found.proc_root,
        driver_proc_root=found.driver_proc_root,
        cgroup_root=found.cgroup_root,
        mps_socket=found.mps_socket,
        views=found.views,
        mig_profiles=found.mig_profiles,
        shared_mig_profiles=found.shared_mig_profiles,
        numa_lists=found.numa_lists,
        consumable_shares=found.consumable_shares,
        expected_gpus=found.expected_gpus,
        rescan_period=found.rescan_period,
        gpu_timeout=found.gpu_timeout,
        reconcile_period=found.reconcile_period,
        health=health_settings(found),
        http_endpoint=found.http_endpoint,
        metrics_path=found.metrics_path,
        stay=found.stay,
        log_level=found.log_level,
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = new_parser(
        "dra-gpu node",
        "dra-gpu node --vendor nvidia [options]",
        "Publishes this node's GPUs to Kubernetes and prepares claims on them.",
    )

    flags = Flags(parser, environment)
    add = flags.add
    parser.add_argument(
        "--vendor", required=True, choices=tuple(_DRIVER_OF_VENDOR), help="whose GPUs this instance serves"
    )
    add("--node-name", "NODE_NAME", "", "name of this node's Node object; required")
    add("--pod-uid", "POD_UID", "", "UID of this instance's pod: gives it sockets of its own")
    add("--kubeconfig", "KUBECONFIG", None, "how to reach the API server; not needed inside a pod", type=Path)
    add(
        "--driver-root",
        "NVIDIA_DRIVER_ROOT",
        Path("/"),
        "driver installation, by its path on the host",
        type=Path,
    )
    add(
        "--container-driver-root",
        "DRIVER_ROOT_CTR_PATH",
        None,
        "the same as this process sees it (default: by the same path)",
        type=Path,
    )
    add("--dev-root", None, Path("/dev"), "directory of device nodes, by its path on the host", type=Path)
    add("--container-dev-root", None, None, "the same as this process sees it (default: by the same path)", type=Path)
    add("--sysfs-root", None, Path("/sys"), "where sysfs is mounted", type=Path)
    add("--host-root", "HOST_ROOT", None, "the host's root as this process sees it", type=Path)
    add("--nvidia-cdi-hook-path", "NVIDIA_CDI_HOOK_PATH", "", "the container toolkit's hook program on the host")
    add("--boot-id-file", None, Path("/proc/sys/kernel/random/boot_id"), "tells one boot from the next", type=Path)
    add("--cdi-root", "CDI_ROOT", Path("/var/run/cdi"), "directory that the container runtime reads", type=Path)
    add(
        "--kubelet-plugins-dir",
        "KUBELET_PLUGINS_DIRECTORY_PATH",
        sockets.DEFAULT_PLUGINS_DIR,
        "plugin sockets",
        type=Path,
    )
    add(
        "--kubelet-registrar-dir",
        "KUBELET_REGISTRAR_DIRECTORY_PATH",
        sockets.DEFAULT_REGISTRY_DIR,
        "registration sockets",
        type=Path,
    )
    add(
        "--state-dir",
        None,
        None,
        "this driver's data; a local directory, never NFS (default: beside its socket)",
        type=Path,
    )
    add("--extra-edits", None, None, "JSON file of what every container gets in addition", type=Path)
    add("--proc-root", None, Path("/proc"), "procfs of the host's processes: who holds a GPU is seen there", type=Path)
    add("--driver-proc-root", None, Path("/proc"), "procfs in which the driver shows its MIG instances", type=Path)
    add("--cgroup-root", None, Path("/sys/fs/cgroup"), "where the unified cgroup hierarchy is mounted", type=Path)
    add(
        "--mps-socket",
        "MPS_SOCKET",
        Path("/run/dra-gpu/mps/mps.sock"),
        f"socket of `dra-gpu mps`; `{_NO_MPS}` where it does not run: shares are time slices then",
        type=_socket,
    )
    add(
        "--views",
        "VIEWS",
        DEFAULT_VIEWS,
        f"views to publish, separated by commas, of {', '.join(view.value for view in _VIEWS)}",
        type=_views,
    )
    add(
        "--mig-profiles",
        "MIG_PROFILES",
        None,
        "MIG profiles to publish, separated by commas, such as 1g.10gb,3g.40gb; without it all that a GPU has but "
        "those with +me or +gfx",
        type=_profiles,
    )
    add(
        "--shared-mig-profiles",
        "SHARED_MIG_PROFILES",
        (),
        "MIG profiles of which fractions are published in the view shared-mig, separated by commas",
        type=_profiles,
    )
    add(
        "--numa-lists",
        "NUMA_LISTS",
        "false",
        "publish numaNode as a list of the nodes nearest to a GPU; the cluster needs its gate DRAListTypeAttributes",
        type=_switch,
        nargs="?",
        const=True,
    )
    add(
        "--consumable-shares",
        "CONSUMABLE_SHARES",
        "disabled",
        "let several claims have one whole GPU or partition without limits: by memory, unlimited, or so many claims",
        type=_consumable_shares,
    )
    add("--expected-gpus", None, None, "do not publish before so many GPUs are there", type=_count)
    add("--gpu-timeout", None, 15.0, "seconds after which a GPU that does not answer is left out", type=seconds)
    add("--rescan-period", None, 60.0, "seconds between two looks at the GPUs", type=seconds)
    add("--reconcile-period", None, 600.0, "seconds between two comparisons with the API server", type=seconds)
    add_health_flags(flags)
    http_flags(add)
    add(
        "--stay",
        None,
        "false",
        "with `leave`: wait to be ended when nothing is left, as the pod of a DaemonSet must, which is started again",
        type=_switch,
        nargs="?",
        const=True,
    )
    add("--log-level", "LOG_LEVEL", "info", "what to log", choices=LEVELS)
    return parser


def _two_names(host: Path, process: Path | None) -> HostDirectory:
    return HostDirectory(PurePosixPath(host), process or host)


def _socket(text: str) -> Path | None:
    return None if text == _NO_MPS else Path(text)


def _views(text: str) -> tuple[View, ...]:
    known = {view.value: view for view in _VIEWS}
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{text!r} must be some of {', '.join(known)}")
    return tuple(view for name, view in known.items() if name in names)


def _consumable_shares(text: str) -> ConsumableShares | None:
    try:
        return consumable_shares(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _switch(text: str) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} must be true or false")
    return known[text.lower()]


def _profiles(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    unlike = [name for name in names if _PROFILE.fullmatch(name) is None]
    if unlike or not names:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unlike) or text!r} must be names of MIG profiles as nvidia-smi mig -lgip tells them, such as "
            "1g.10gb or 1g.10gb+me"
        )
    return names


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return value
