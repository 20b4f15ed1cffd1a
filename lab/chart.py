"""The driver on a lab node from its chart and its image: what users install, with paths of simulated GPUs as values."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import driver_image, node
from lab.build import bin_dir, build, helm_program
from lab.cgroups import Cgroups
from lab.errors import LabError
from lab.images import write_archive
from lab.layout import Layout, Node
from lab.progress import Progress
from lab.recipe import helm as helm_recipe
from lab.simulated import SimulatedGpus

CHART = Path(__file__).parent.parent / "deploy" / "helm" / "dra-driver-gpu"
RELEASE = "dra-driver-gpu"
_HELM_WITHIN_SECONDS = 300.0
_MOUNT_WITHIN_SECONDS = 10.0


@dataclass(frozen=True)
class LabChart:
    """A release of the chart on one node of a lab."""

    layout: Layout
    node: Node
    gpus: SimulatedGpus
    namespace: str

    def import_image(self, version: str = "") -> None:
        """Make the image from the sources, as they are or under another version, and give it to the node.

        Raises:
            LabError: it cannot be made, or containerd refuses it.
        """
        work = self.layout.state / "driver-image"
        work.mkdir(exist_ok=True)
        archive = work / "image.tar"
        write_archive([driver_image.driver_image(work, version)], archive)
        node.import_images(self.layout, self.node, archive, bin_dir())

    def share_driver_root(self) -> None:
        """Make the driver's installation a mount that containers can follow: `/` is one on most machines, not here."""
        root = str(self.gpus.root / "driver")
        for command in (("mount", "--bind", root, root), ("mount", "--make-shared", root)):
            subprocess.run(command, check=True, capture_output=True, timeout=_MOUNT_WITHIN_SECONDS)

    def unshare_driver_root(self) -> None:
        """Take that back; fine where it is gone already."""
        command = ("umount", "--lazy", str(self.gpus.root / "driver"))
        subprocess.run(command, check=False, capture_output=True, timeout=_MOUNT_WITHIN_SECONDS)

    def values(self) -> dict[str, Any]:
        """Return the values that differ from the chart's: where this node, and its GPUs, have what others have in /."""
        root = str(self.gpus.root)
        unified = f"/sys/fs/cgroup/{self.layout.node_cgroup(self.node)}"
        sees_it = {
            "env": [{"name": "DRA_GPU_SIM_ROOT", "value": root}],
            "extraVolumeMounts": [{"name": "gpus", "mountPath": root}],
        }
        volume = [{"name": "gpus", "hostPath": {"path": root, "type": "Directory"}}]
        return {
            # Nothing is pulled in a lab, and no discovery labels its nodes.
            "image": {"pullPolicy": "Never"},
            "vendors": {"nvidia": {"nodeLabels": []}},
            "kubeletRoot": str(self.node.kubelet_root),
            "cdiRoot": str(self.node.cdi_dir),
            "runRoot": str(self.node.dir),
            "nvidiaDriverRoot": f"{root}/driver",
            "host": {
                "mountRoot": False,
                "containerDriverRoot": f"{root}/driver",
                "devRoot": f"{root}/dev",
                "sysRoot": f"{root}/sys",
                "driverProcRoot": f"{root}/proc",
                "bootIdFile": f"{root}/boot_id",
                "cgroupRoot": unified if Cgroups.detect().unified else "/sys/fs/cgroup",
            },
            "extraEdits": json.loads(self.gpus.extra_edits.read_text())["containerEdits"],
            # Fractions of one profile, so that examples/fraction-of-a-partition.yaml runs as it is.
            "sharedMigProfiles": ["3g.40gb"],
            "kubeletPlugin": {"extraVolumes": volume, "containers": {"gpus": sees_it}},
            "mps": {"extraVolumes": volume, **sees_it},
            # Whoever holds GPUs in a test holds them on.
            "uninstallCheck": {"waitSeconds": 2},
        }

    def write_helm(self, **more: Any) -> Path:
        """Write a `helm` for the commands of documents, and return the directory that it lies in.

        It is Helm, but that what it installs or upgrades has the values of this node, and `more` in place of these.
        """
        build(Progress(), helm_recipe())
        directory = self.layout.state / "helm"
        directory.mkdir(exist_ok=True)
        values, program = directory / "values.json", directory / "helm"
        values.write_text(json.dumps(self.values() | more))
        helm = helm_program()
        program.write_text(
            f'#!/bin/sh\ncase "$1" in\ninstall|upgrade) exec {helm} "$@" --values {values} ;;\nesac\nexec {helm} "$@"\n'
        )
        program.chmod(0o755)
        return directory

    def helm(self, command: str, *arguments: str, release: str = RELEASE, namespace: str = "") -> str:
        """Run a command of Helm on a release; return what it prints.

        Raises:
            LabError: it fails; the text has its words.
        """
        build(Progress(), helm_recipe())
        placed = ["--namespace", namespace or self.namespace, "--kubeconfig", str(self.layout.kubeconfig)]
        line: Sequence[str | Path] = [helm_program(), command, release, *arguments, *placed]
        result = subprocess.run(
            line, check=False, capture_output=True, text=True, timeout=_HELM_WITHIN_SECONDS, input=self._values_file()
        )
        if result.returncode != 0:
            raise LabError(f"helm {command} {release}: {result.stderr.strip()}")
        return result.stdout

    def install(self, *arguments: str, release: str = RELEASE, namespace: str = "") -> str:
        """Install the chart, or with `--dry-run=server` ask whether it could be; more values as `--set a=b`."""
        more = ("--create-namespace", "--values", "-", *arguments)
        return self.helm("install", str(CHART), *more, release=release, namespace=namespace)

    def upgrade(self, *arguments: str) -> str:
        """Upgrade the release to the chart and the values as they are now."""
        return self.helm("upgrade", str(CHART), "--values", "-", *arguments)

    def uninstall(self, *arguments: str) -> str:
        """Remove the release."""
        return self.helm("uninstall", *arguments)

    def _values_file(self) -> str:
        return json.dumps(self.values())
