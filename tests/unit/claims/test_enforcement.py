"""What keeps a share to its limits follows from the GPU, the driver, the pod's cgroup and what the claim accepts."""

import pytest

from dra_gpu.api.dra_gpu_v1alpha1 import Enforcement, SharedGpuConfig, SharedStrategy
from dra_gpu.claims.enforcement import Surroundings, terms_of
from dra_gpu.claims.outcome import RefusedError
from dra_gpu.inventory.sharing import Mechanism, MpsProtocol, SharingAbility
from tests.unit.claims.world import inventory_of
from tests.unit.inventory.builders import gpu

NEW = SharingAbility(MpsProtocol.NAMESPACE, memory_limits=True)
NEW_ON_CGROUP_V1 = SharingAbility(MpsProtocol.NAMESPACE, memory_limits=False)
OLD = SharingAbility(MpsProtocol.CLASSIC)
PASCAL = SharingAbility(None)
AUTO, MPS, SLICES = SharedStrategy.AUTO, SharedStrategy.MPS, SharedStrategy.TIME_SLICING


def around(ability: SharingAbility, *, served: bool = True, pods=("p1",), cgroups=("p1",)) -> Surroundings:
    return Surroundings(lambda _gpu: ability, served, pods, lambda pod: f"/kubepods/{pod}" if pod in cgroups else None)


def terms(ability: SharingAbility, strategy: SharedStrategy = AUTO, *, required: bool = False, **facts):
    enforcement = Enforcement.REQUIRED if required else Enforcement.BEST_EFFORT
    config = SharedGpuConfig(strategy=strategy, enforcement=enforcement)
    device = inventory_of([gpu(0)]).devices["gpu-0-shared"]
    return terms_of("claim c: device gpu-0-shared", device, config, around(ability, **facts))


@pytest.mark.parametrize(
    ("ability", "strategy", "cgroups", "used", "compute", "memory"),
    [
        (NEW, AUTO, ("p1",), MPS, Mechanism.NAMESPACE, Mechanism.CGROUP),
        (NEW, MPS, ("p1",), MPS, Mechanism.NAMESPACE, Mechanism.CGROUP),
        (NEW, AUTO, (), MPS, Mechanism.NAMESPACE, Mechanism.COOPERATIVE),
        (NEW_ON_CGROUP_V1, AUTO, ("p1",), MPS, Mechanism.NAMESPACE, Mechanism.COOPERATIVE),
        (OLD, AUTO, ("p1",), MPS, Mechanism.COOPERATIVE, Mechanism.COOPERATIVE),
        (PASCAL, AUTO, ("p1",), SLICES, Mechanism.TIME_SLICE, Mechanism.ACCOUNTING),
        (OLD, SLICES, ("p1",), SLICES, Mechanism.TIME_SLICE, Mechanism.ACCOUNTING),
        (NEW, SLICES, ("p1",), SLICES, Mechanism.TIME_SLICE, Mechanism.CGROUP),
    ],
)
def test_each_limit_is_kept_by_the_best_there_is(ability, strategy, cgroups, used, compute, memory):
    found = terms(ability, strategy, cgroups=cgroups)
    assert (found.strategy, found.compute, found.memory) == (used, compute, memory)
    assert bool(found.cgroups) is (memory is Mechanism.CGROUP)


def test_required_takes_limits_that_no_container_can_lift():
    assert terms(NEW, required=True).memory is Mechanism.CGROUP


@pytest.mark.parametrize(
    ("ability", "facts", "words", "retryable"),
    [
        (OLD, {}, ("computePercent by `cooperative`", "older than 615"), False),
        (PASCAL, {}, ("computePercent by `time-slice`", "compute capability 9.0"), False),
        (NEW, {"served": False}, ("computePercent by `time-slice`", "`dra-gpu mps`"), False),
        (NEW_ON_CGROUP_V1, {}, ("memory by `cooperative`", "cgroup v2"), False),
        (NEW, {"cgroups": ()}, ("memory by `cooperative`", "was not found"), True),
    ],
)
def test_required_refuses_what_a_container_could_lift_and_says_why_and_the_way_out(ability, facts, words, retryable):
    with pytest.raises(RefusedError) as caught:
        terms(ability, required=True, **facts)
    for word in (*words, "Required", "BestEffort", "claim c: device gpu-0-shared"):
        assert word in caught.value.refusal.message
    assert caught.value.refusal.retryable is retryable


@pytest.mark.case("C85")
@pytest.mark.parametrize(("facts", "why"), [({}, "compute capability"), ({"served": False}, "is not enabled on this")])
def test_a_strategy_that_cannot_be_had_here_is_refused_with_the_reason_and_the_way_out(facts, why):
    with pytest.raises(RefusedError) as caught:
        terms(PASCAL, MPS, **facts)
    for word in ("strategy MPS", why, "TimeSlicing"):
        assert word in caught.value.refusal.message


def test_auto_says_when_it_falls_back():
    assert any("time slices instead of MPS" in note for note in terms(PASCAL).notes)


def test_a_share_of_several_pods_says_that_each_of_them_is_limited():
    found = terms(NEW, pods=("p1", "p2"), cgroups=("p1", "p2"))
    assert found.cgroups == ("/kubepods/p1", "/kubepods/p2")
    assert any("2 pods" in note for note in found.notes)
