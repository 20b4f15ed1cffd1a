"""One node: containerd and kubelet with all paths and addresses of their own, so that several share a machine."""

import json
import subprocess
import time
from pathlib import Path

from lab import images, packages
from lab.cgroups import Cgroups
from lab.controlplane import add_address, server_url
from lab.errors import LabError
from lab.kubeconfig import write_kubeconfig
from lab.layout import Layout, Node
from lab.processes import Process, listens
from lab.settings import Settings

_CONTAINERD_WITHIN_SECONDS = 90.0
_IMPORT_WITHIN_SECONDS = 180.0

_CONTAINERD_CONFIG = """\
version = 3
root = "{dir}/containerd/root"
state = "{dir}/containerd/state"
disabled_plugins = [
  "io.containerd.nri.v1.nri",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]

[grpc]
  address = "{socket}"

[ttrpc]
  address = "{socket}.ttrpc"

[plugins."io.containerd.internal.v1.opt"]
  path = "{dir}/containerd/opt"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE nobody may lower oom_score_adj; runc dies when it is asked to.
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = ["{cdi}"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{programs}/cni"]
    conf_dir = "{dir}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        Root = "{dir}/containerd/runc"
        SystemdCgroup = false
"""


def prepare(layout: Layout, settings: Settings, node: Node, cgroups: Cgroups, programs: Path) -> None:
    """Make the node's directories, address, cgroups and configuration files."""
    for directory in (
        node.kubelet_root,
        node.plugins_dir,
        node.registrar_dir,
        node.cdi_dir,
        node.credentials_dir,
        node.dir / "cni",
    ):
        directory.mkdir(parents=True, exist_ok=True)
    add_address(node.address)
    cgroups.make(layout.node_cgroup(node))
    cgroups.make(layout.runtime_cgroup(node))
    (node.dir / "containerd.toml").write_text(
        _CONTAINERD_CONFIG.format(
            dir=node.dir,
            socket=node.containerd_socket,
            pause=images.PAUSE,
            cdi=node.cdi_dir,
            programs=programs,
            runc=packages.require("runc"),
        )
    )
    (node.dir / "cni" / "10-ptp.conflist").write_text(json.dumps(_cni(layout, node)))
    (node.dir / "kubelet.json").write_text(json.dumps(_kubelet_config(layout, settings, node), indent=1))
    token = settings.node_tokens[node.number - 1]
    write_kubeconfig(node.dir / "kubelet.kubeconfig", server=server_url(settings), ca=layout.ca, token=token)


def start_containerd(layout: Layout, node: Node, cgroups: Cgroups, programs: Path) -> Process:
    """Start containerd in its own cgroup, which every shim inherits."""
    process = layout.containerd(node)
    process.start(
        [programs / "containerd", "--config", node.dir / "containerd.toml", "--log-level", "warn"],
        # The shim is looked for in PATH.
        environment={"PATH": f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        procs_file=cgroups.procs_file(layout.runtime_cgroup(node)),
    )
    return process


def import_images(layout: Layout, node: Node, archive: Path, programs: Path) -> None:
    """Wait for containerd and give it the images of `archive`.

    Raises:
        LabError: containerd does not answer, or refuses the archive.
    """
    process = layout.containerd(node)
    deadline = time.monotonic() + _CONTAINERD_WITHIN_SECONDS
    while not listens(node.containerd_socket):
        if process.running() is None or time.monotonic() > deadline:
            raise LabError(
                f"containerd of {node.name} does not listen; its log {process.log} ends with:\n{process.tail()}"
            )
        time.sleep(0.05)
    ctr: list[str | Path] = [programs / "ctr", "-a", node.containerd_socket, "-n", "k8s.io"]
    command = [*ctr, "images", "import", archive]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_IMPORT_WITHIN_SECONDS)
    if result.returncode != 0:
        raise LabError(f"containerd of {node.name} refuses {archive}: {(result.stdout + result.stderr).strip()[-800:]}")


def start_kubelet(layout: Layout, node: Node, programs: Path) -> Process:
    """Start the kubelet; the caller waits for the node to be Ready."""
    process = layout.kubelet(node)
    process.start(
        [
            programs / "kubelet",
            f"--config={node.dir / 'kubelet.json'}",
            f"--kubeconfig={node.dir / 'kubelet.kubeconfig'}",
            f"--root-dir={node.kubelet_root}",
            f"--cert-dir={node.kubelet_root / 'pki'}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            "--v=2",
        ]
    )
    return process


def _kubelet_config(layout: Layout, settings: Settings, node: Node) -> dict[str, object]:
    """Return the KubeletConfiguration. Source: k8s.io/kubelet/config/v1beta1/types.go."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "port": settings.ports.kubelet,
        "healthzPort": 0,
        # The address exists on this machine's loopback device only; there is no client certificate to check.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.node_cgroup(node)}",
        # 1.37 refuses to start on cgroup v1 otherwise.
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "podLogsDir": str(node.dir / "pod-logs"),
        "resolvConf": "",
        # Nothing answers there; without it every pod gets a warning event.
        "clusterDNS": [layout.apiserver_service],
        "enableControllerAttachDetach": False,
        "maxPods": 200,
        "registerWithTaints": [],
        "shutdownGracePeriod": "0s",
    }


def _cni(layout: Layout, node: Node) -> dict[str, object]:
    return {
        "cniVersion": "1.0.0",
        "name": "lab",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(node.dir / "cni" / "addresses"),
                    "ranges": [[{"subnet": node.pod_subnet}]],
                    # To the API server, and no further.
                    "routes": [{"dst": layout.services}],
                },
            }
        ],
    }
