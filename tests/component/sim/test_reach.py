"""What the living processes of a GPU can come to hold, whatever anybody promised."""

import os

from dra_gpu_sim.reach import reach
from dra_gpu_sim.state import PROCESS_MPS_CLIENT
from tests.component.sim.test_processes import set_limit

GIB = 1 << 30
CONTEXT = 256 << 20
POD = "/kubepods/pod1"


def add(node, memory, cgroup="", *, namespace="", percent=0, limit=0) -> None:
    node.add_process(os.getpid(), 0, memory=memory, cgroup=cgroup, kind=PROCESS_MPS_CLIENT)
    with node.state() as state:
        slot = [one for one in state.processes if one.used][-1]
        slot.mps_namespace, slot.sm_percent, slot.memory_limit = namespace.encode(), percent, limit


def test_a_gpu_that_nobody_uses_is_out_of_reach(node):
    assert [(one.gpu, one.memory, one.sm_percent, one.held) for one in reach(node.root)] == [(0, 0, 0, 0), (1, 0, 0, 0)]


def test_a_process_without_limits_can_have_the_whole_gpu(node):
    add(node, GIB)

    [first, second] = reach(node.root)

    assert (first.memory, first.sm_percent, first.held) == (node.gpus[0].memory, 100, GIB)
    assert (second.memory, second.sm_percent) == (0, 0)


def test_processes_of_one_limited_pod_have_its_limit_together(node, nvml):
    set_limit(nvml, nvml.nvmlDeviceGetHandleByIndex(0), POD, 10 * GIB)
    set_limit(nvml, nvml.nvmlDeviceGetHandleByIndex(0), f"{POD}0", 5 * GIB)
    for container in ("a", "b"):
        add(node, GIB, f"{POD}/{container}", namespace="gpu/one", percent=20)
    add(node, GIB, f"{POD}0/c", namespace="gpu/two", percent=30)

    assert (reach(node.root)[0].memory, reach(node.root)[0].sm_percent) == (15 * GIB, 50)


def test_a_limit_below_what_is_held_takes_nothing_away(node, nvml):
    set_limit(nvml, nvml.nvmlDeviceGetHandleByIndex(0), POD, 10 * GIB)
    add(node, 30 * GIB, POD)

    assert (reach(node.root)[0].memory, reach(node.root)[0].held) == (30 * GIB, 30 * GIB)


def test_a_limit_of_mps_is_each_process_s_own_and_its_share_has_what_the_largest_has(node):
    add(node, GIB, POD, namespace="gpu/one", percent=20, limit=10 * GIB)
    add(node, GIB, POD, namespace="gpu/one", percent=40, limit=10 * GIB)

    assert (reach(node.root)[0].memory, reach(node.root)[0].sm_percent) == (20 * GIB, 40)


def test_real_clients_of_mps_reach_what_their_namespaces_allow(mps):
    first, second = mps.share("s_a", "--pinned-memory-limit=10G", "--active-thread-percentage=20"), mps.share("s_b")
    with mps.client(pipe=first) as one, mps.client(pipe=second) as other:
        assert one.attached.startswith("attached")
        assert other.attached.startswith("attached")
        both = reach(mps.node.root)[0]
    assert (both.memory, both.sm_percent) == (10 * GIB + mps.node.gpus[0].memory, 120)
