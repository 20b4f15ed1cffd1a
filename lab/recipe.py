"""What is built, from which modules, with which flags.

The hash of a recipe and of its module files names its build directory. Three Go modules, because containerd and
etcd, or Helm, in one module with Kubernetes would upgrade its own dependencies.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

_LAB = Path(__file__).parent
KUBERNETES_MODULE = _LAB / "go" / "kubernetes"
NODE_MODULE = _LAB / "go" / "node"
HELM_MODULE = _LAB / "go" / "helm"


@dataclass(frozen=True)
class Binary:
    """One program: its path in the build directory, the directory of its Go module, its package, its build flags."""

    name: str
    module: Path
    package: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """Programs that are built into one directory."""

    modules: tuple[Path, ...]
    binaries: tuple[Binary, ...]

    def fingerprint(self) -> str:
        """Return twelve hex digits that change whenever a pinned module or a package or flag of this recipe does."""
        digest = hashlib.sha256()
        for module in self.modules:
            for name in ("go.mod", "go.sum"):
                digest.update((module / name).read_bytes())
        for binary in self.binaries:
            digest.update(f"{binary.name} {binary.package} {binary.flags}\n".encode())
        return digest.hexdigest()[:12]


def helm() -> Recipe:
    """Return what the tests of the chart need alone: built in minutes, and before the cluster's programs."""
    return Recipe((HELM_MODULE,), (Binary("helm", HELM_MODULE, "helm.sh/helm/v4/cmd/helm", ("-ldflags", "-s -w")),))


def kubernetes_version() -> str:
    """Return the version of Kubernetes that go.mod pins, as `v1.37.2`."""
    match = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", (KUBERNETES_MODULE / "go.mod").read_text(), re.MULTILINE)
    if match is None:
        raise ValueError(f"{KUBERNETES_MODULE}/go.mod does not require k8s.io/kubernetes")
    return match.group(1)


def cluster() -> Recipe:
    """Return what a cluster runs."""
    return Recipe((KUBERNETES_MODULE, NODE_MODULE), binaries())


def binaries() -> tuple[Binary, ...]:
    """Return the programs of a cluster, the small ones first, so that a broken tool chain shows at once."""
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".", 2)
    # Without these stamps the server calls itself v0.0.0 (Source: k8s.io/component-base/version/base.go).
    stamp = " ".join(
        f"-X k8s.io/component-base/version.{key}={value}"
        for key, value in (("gitVersion", version), ("gitMajor", major), ("gitMinor", minor))
    )
    kubernetes = ("-ldflags", f"-s -w {stamp}")
    # containerd's btrfs snapshotter needs C headers that nobody here uses.
    node = ("-tags", "no_btrfs", "-ldflags", "-s -w")
    containerd = "github.com/containerd/containerd/v2/cmd"
    plugins = "github.com/containernetworking/plugins/plugins"
    return (
        Binary("cni/loopback", NODE_MODULE, f"{plugins}/main/loopback", node),
        Binary("cni/ptp", NODE_MODULE, f"{plugins}/main/ptp", node),
        Binary("cni/host-local", NODE_MODULE, f"{plugins}/ipam/host-local", node),
        Binary("containerd-shim-runc-v2", NODE_MODULE, f"{containerd}/containerd-shim-runc-v2", node),
        Binary("ctr", NODE_MODULE, f"{containerd}/ctr", node),
        Binary("containerd", NODE_MODULE, f"{containerd}/containerd", node),
        Binary("etcd", NODE_MODULE, "go.etcd.io/etcd/server/v3", node),
        *(
            Binary(name, KUBERNETES_MODULE, f"k8s.io/kubernetes/cmd/{name}", kubernetes)
            for name in ("kubectl", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "kubelet")
        ),
    )
