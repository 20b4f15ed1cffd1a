"""The commands of the tutorials, as they stand in the documents: each does what is shown.

Those of an operator are run by test_chart.py.
"""

from collections.abc import Iterator

import pytest

from tests.console import ROOT, commands
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.components import component
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.shell import Shell
from tests.e2e.harness.waiting import PATIENCE, wait_until

TUTORIALS = ("share.md", "mig.md", "nvlink-pair.md", "resize.md")


@pytest.fixture
def shell(driver: DriverOnNode, cluster: Cluster) -> Iterator[Shell]:
    """A shell beside a controller; whatever a document left undone is deleted, and nothing is held when it ends."""
    with component(cluster, "controller") as controller:
        controller.wait_logged("this replica leads")
        yield Shell.of(cluster)
        cluster.kubectl("delete", "claimresizes", "--all", "--namespace=default", "--timeout=50s")
    for kind in ("pods,jobs", "resourceclaims,resourceclaimtemplates"):
        cluster.kubectl("delete", kind, "--all", "--wait=false", "--namespace=default")
    cluster.kubectl("delete", "deviceclass/mig-1g.10gb.nvidia.com", "--ignore-not-found")
    wait_until("no GPU held", lambda: not cluster.held_claims(), 2 * PATIENCE)


@pytest.mark.budget(60)
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_does_what_it_shows(name: str, shell: Shell) -> None:
    for command in commands(ROOT / "docs" / "tutorials" / name):
        shell.does(command)
