"""The running lab as tests see it: API, kubectl, and the processes that a test may stop and start."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from lab import controlplane, node
from lab.api import Api, path_of
from lab.build import bin_dir
from lab.deployment import apply_manifests
from lab.layout import Layout, Node
from lab.settings import Settings

from tests.e2e.harness.waiting import PATIENCE


@dataclass(frozen=True)
class Cluster:
    """A lab that is up."""

    layout: Layout
    settings: Settings

    @property
    def api(self) -> Api:
        """A client with all rights."""
        return controlplane.admin_api(self.layout, self.settings)

    @property
    def node(self) -> Node:
        """The node that tests work on."""
        return self.layout.node(1)

    def api_with(self, token: str) -> Api:
        """A client with the rights of `token`."""
        admin = self.api
        return Api(admin.host, admin.port, admin.ca, token)

    def kubectl(self, *arguments: str, seconds: float = PATIENCE) -> str:
        """Run the cluster's own kubectl and return what it prints; raises AssertionError with its words if it fails."""
        command = [str(bin_dir() / "kubectl"), f"--kubeconfig={self.layout.kubeconfig}", *arguments]
        result = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
        assert result.returncode == 0, f"kubectl {' '.join(arguments)}: {result.stderr.strip()}"
        return result.stdout

    def apply_deployment(self) -> None:
        """Apply the manifests that users apply: classes, policies, the node plugin's rights."""
        apply_manifests(self.layout)

    def held_claims(self) -> list[str]:
        """Return the claims with an allocation, in any namespace, as `namespace/name`."""
        return sorted(
            f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            for item in self.api.items(path_of("resource.k8s.io/v1", "resourceclaims"))
            if item.get("status", {}).get("allocation")
        )

    @contextlib.contextmanager
    def apiserver_away(self) -> Iterator[None]:
        """Stop the API server for the block; afterwards wait until it is ready again."""
        self.layout.process("kube-apiserver").stop(signal.SIGKILL)
        try:
            yield
        finally:
            controlplane.start_apiserver(self.layout, self.settings, bin_dir())

    def stop_kubelet(self) -> None:
        """End the kubelet of the test node; pods keep running."""
        self.layout.kubelet(self.node).stop(signal.SIGTERM)

    def start_kubelet(self) -> None:
        """Start the kubelet of the test node."""
        node.start_kubelet(self.layout, self.node, bin_dir())

    def kill_container(self, container_id: str) -> None:
        """End a container as a crash does: SIGKILL to its first process, from outside."""
        ctr = [str(bin_dir() / "ctr"), "-a", str(self.node.containerd_socket), "-n", "k8s.io"]
        identifier = container_id.rpartition("/")[2]
        subprocess.run(
            [*ctr, "tasks", "kill", "--signal", "SIGKILL", identifier],
            check=True,
            capture_output=True,
            timeout=PATIENCE,
        )

    def cut_power(self) -> None:
        """End the kubelet and every container of the test node at once; containerd stays, and nothing is tidied up."""
        self.layout.kubelet(self.node).stop(signal.SIGKILL)
        ctr = [str(bin_dir() / "ctr"), "-a", str(self.node.containerd_socket), "-n", "k8s.io"]
        listed = subprocess.run(
            [*ctr, "tasks", "ls", "-q"], check=True, capture_output=True, text=True, timeout=PATIENCE
        )
        for identifier in listed.stdout.split():
            # One may have ended by itself meanwhile.
            command = [*ctr, "tasks", "kill", "--signal", "SIGKILL", identifier]
            subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE)

    def forget_kubelet_claims(self) -> None:
        """Remove the kubelet's own record of prepared claims; only while it is stopped."""
        (self.node.kubelet_root / "dra_manager_state").unlink()
