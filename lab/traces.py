"""Removes what kubelet, containerd and CNI leave outside the state directory, at paths that they let nobody choose.

Left as it is: `net.ipv4.ip_forward`, which the ptp plugin switches on and others on this machine may need by now.
"""

import json
from contextlib import suppress
from pathlib import Path

from lab.layout import Layout
from lab.processes import listens

_CONTAINER_LOGS = Path("/var/log/containers")
_CNI_RESULTS = Path("/var/lib/cni/results")
_DEVICE_PLUGIN_SOCKET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")


def remove_outside_traces(layout: Layout) -> None:
    """Remove the traces of this lab's containers; call it after all processes ended and before the state goes."""
    _remove_log_links(layout)
    for bundle in layout.state.glob("node-*/containerd/state/io.containerd.runtime.v2.task/k8s.io/*"):
        _remove_shim_socket(bundle)
        for result in _CNI_RESULTS.glob(f"*-{bundle.name}-*"):
            result.unlink(missing_ok=True)
    if _DEVICE_PLUGIN_SOCKET.exists() and not listens(_DEVICE_PLUGIN_SOCKET):
        _DEVICE_PLUGIN_SOCKET.unlink(missing_ok=True)


def _remove_log_links(layout: Layout) -> None:
    """The kubelet links each container's log into one directory of the machine."""
    for link in _CONTAINER_LOGS.iterdir() if _CONTAINER_LOGS.is_dir() else []:
        if link.is_symlink() and layout.state in link.readlink().parents:
            link.unlink(missing_ok=True)


def _remove_shim_socket(bundle: Path) -> None:
    """A shim notes its socket's address in the bundle (Source: containerd 2.4 core/runtime/v2, bootstrap.json)."""
    with suppress(OSError, ValueError, KeyError):
        address = json.loads((bundle / "bootstrap.json").read_text())["address"]
        path = Path(address.removeprefix("unix://"))
        if path.is_socket():
            path.unlink(missing_ok=True)
