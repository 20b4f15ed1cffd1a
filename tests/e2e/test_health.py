"""Sick GPUs on the real Kubernetes: who is told, who is evicted, and how a GPU comes back.

Each test has a GPU of its own: one that becomes sick again and again within an hour stays out of service.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.health import done, kubectl_gpu, on_gpu, taints, wait_device_health
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import Container, pod
from tests.e2e.harness.waiting import PATIENCE, wait_until

HOLD_OFF = 12.0


def processes_seen(driver: DriverOnNode) -> Path:
    """A procfs that shows the driver the processes that a test puts there: others of this machine are nobody's here."""
    directory = driver.gpus.root / "processes"
    directory.mkdir(exist_ok=True)
    return directory


def started(driver: DriverOnNode, *arguments: str) -> DriverOnNode:
    """Let the node have one instance of the driver, with these arguments."""
    driver.ensure_serving()
    driver.stop_all()
    driver.start(extra_arguments=(f"--proc-root={processes_seen(driver)}", *arguments))
    driver.wait_published(driver.gpu_count)
    return driver


@pytest.fixture(scope="module")
def plain(node_driver: DriverOnNode) -> Iterator[DriverOnNode]:
    """The driver as it is installed."""
    yield started(node_driver)
    node_driver.stop_all()


@pytest.fixture(scope="module")
def evicting(node_driver: DriverOnNode) -> Iterator[DriverOnNode]:
    """The driver as an operator sets it who wants pods on lost GPUs evicted, and a short hold-off."""
    yield started(node_driver, "--health-evict=lost", f"--health-hold-off={HOLD_OFF:g}")
    node_driver.stop_all()
    node_driver.gpus.inject("--driver-reloaded")  # whatever a test has left: every GPU begins anew


@pytest.mark.budget(75)
def test_by_default_a_sick_gpu_evicts_nobody_and_after_a_reset_it_is_scheduled_again(
    plain: DriverOnNode, namespace: TestNamespace, record_property: Callable[[str, object], None]
) -> None:
    node = plain.cluster.node.name
    on_gpu(namespace, plain, "worker", "gpu-1")
    namespace.wait_running("worker")
    wait_device_health(namespace, "worker", "Healthy")
    before = namespace.container_ids("worker")

    plain.gpus.inject("--gpu=1", "--xid=79")

    # What the driver wants done since is told, too, and may be seen first.
    said = wait_device_health(namespace, "worker", "Unhealthy")
    assert "79" in said or "recovery action Reboot" in said
    wait_until("the taint of gpu-1", lambda: bool(taints(plain, "gpu-1")))
    assert set(taints(plain, "gpu-1").values()) == {"NoSchedule"}
    assert "NoSchedule" not in taints(plain, "gpu-1-monitor", "monitor").values()
    on_gpu(namespace, plain, "next", "gpu-1")
    namespace.wait_unschedulable("next")
    assert namespace.container_ids("worker") == before

    # The default hold-off is ten minutes: what brings the GPU back is the reset.
    asked = time.monotonic()
    result = done(kubectl_gpu(plain.cluster, "reset", node, "gpu-1", "-o", "json"))
    namespace.wait_running("next")
    took = time.monotonic() - asked

    assert [claim["name"] for claim in result["claims"]] == ["worker"]
    assert taints(plain, "gpu-1") == {}
    record_property("from the command, drain and reset included, to the next pod's running", f"{took:.1f} s")


@pytest.mark.budget(30)
def test_a_cordoned_gpu_gets_no_new_pod_until_it_is_uncordoned(plain: DriverOnNode, namespace: TestNamespace) -> None:
    node = plain.cluster.node.name
    assert done(kubectl_gpu(plain.cluster, "cordon", node, "gpu-5", "-o", "json"))["changed"]
    assert not done(kubectl_gpu(plain.cluster, "cordon", node, "gpu-5", "-o", "json"))["changed"]
    on_gpu(namespace, plain, "waits", "gpu-5")
    namespace.wait_unschedulable("waits")

    done(kubectl_gpu(plain.cluster, "uncordon", node, "gpu-5", "-o", "json"))

    namespace.wait_running("waits")


@pytest.mark.budget(30)
def test_a_reset_is_refused_with_pid_and_command_of_whoever_has_the_gpu_open(plain: DriverOnNode) -> None:
    node = plain.cluster.node.name
    device = str(plain.gpus.root / "dev" / "nvidia6")
    program = f"import os\nos.open({device!r}, os.O_PATH)\nprint('open', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "a-monitor"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "open\n"
            (processes_seen(plain) / str(holder.pid)).symlink_to(f"/proc/{holder.pid}")

            refused = kubectl_gpu(plain.cluster, "reset", node, "gpu-6")
        finally:
            holder.kill()

    assert refused.returncode == 1
    assert f"pid {holder.pid} (" in refused.stderr
    assert Path(sys.executable).name in refused.stderr
    assert "It stays drained" in refused.stderr
    done(kubectl_gpu(plain.cluster, "reset", node, "gpu-6", "-o", "json"))


@pytest.mark.budget(30)
def test_top_reads_what_claims_use_through_the_api_server(plain: DriverOnNode, namespace: TestNamespace) -> None:
    on_gpu(namespace, plain, "worker", "gpu-7")
    namespace.wait_running("worker")
    # The lab's node plugin is no pod: this one stands for it, where the API server looks for one.
    labels = f'namespace="{namespace.name}",claim="worker",gpu="gpu-7"'
    said = f'dra_gpu_claim_memory_used_bytes{{{labels},source="process"}} 1073741824'
    script = f"mkdir /www; echo '{said}' > /www/metrics; exec httpd -f -p 8080 -h /www"
    teller = pod("teller", Container(script=script, claims=()))
    teller["metadata"]["labels"] = {"app.kubernetes.io/component": "node", "resource.dra-gpu.dev/metrics": "true"}
    teller["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": 8080}]
    namespace.create(teller)
    namespace.wait_running("teller")

    def used() -> list[int]:
        seen = done(kubectl_gpu(plain.cluster, "top", "-n", namespace.name, "-o", "json"))
        claims = [claim for gpu in seen["gpus"] if gpu["name"] == "gpu-7" for claim in gpu["claims"]]
        return [claim.get("memoryUsed", 0) for claim in claims]

    wait_until("the figure of the teller", lambda: used() == [2**30], every=1.0)


@pytest.mark.budget(60)
def test_with_evict_lost_xid_79_evicts_the_pods_of_that_gpu_alone_and_xid_94_nobody(
    evicting: DriverOnNode, namespace: TestNamespace
) -> None:
    on_gpu(namespace, evicting, "lost", "gpu-2")
    on_gpu(namespace, evicting, "contained", "gpu-3")
    namespace.wait_running("lost", "contained")
    before = namespace.container_ids("contained")

    evicting.gpus.inject("--gpu=3", "--xid=94")
    evicting.gpus.inject("--gpu=2", "--xid=79")

    namespace.wait_gone("lost")
    wait_until("the notice of XID 94", lambda: bool(taints(evicting, "gpu-3")))
    assert namespace.container_ids("contained") == before
    assert "NoExecute" not in taints(evicting, "gpu-3").values()
    assert "NoSchedule" not in taints(evicting, "gpu-3").values()
    done(kubectl_gpu(evicting.cluster, "reset", evicting.cluster.node.name, "gpu-2", "-o", "json"))


@pytest.mark.budget(60)
def test_without_a_reset_a_gpu_is_scheduled_again_after_the_hold_off_and_not_before(
    evicting: DriverOnNode, namespace: TestNamespace
) -> None:
    on_gpu(namespace, evicting, "worker", "gpu-4")
    namespace.wait_running("worker")
    before = namespace.container_ids("worker")
    fell_sick = time.monotonic()
    evicting.gpus.inject("--gpu=4", "--xid=48", "--recovery-action=0")
    wait_device_health(namespace, "worker", "Unhealthy")

    wait_device_health(namespace, "worker", "Healthy")

    assert time.monotonic() - fell_sick >= HOLD_OFF - 1.0  # times of health are kept in whole seconds
    wait_until("gpu-4 has no taint", lambda: taints(evicting, "gpu-4") == {}, PATIENCE)
    assert namespace.container_ids("worker") == before
    namespace.delete_pod("worker")
    on_gpu(namespace, evicting, "next", "gpu-4")
    namespace.wait_running("next")
