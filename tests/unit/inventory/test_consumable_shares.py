"""NVIDIA's `consumableShares`: whole GPUs and partitions that several claims have at once, counted and not limited."""

import msgspec
import pytest

from dra_gpu.api import quantity, resource_v1
from dra_gpu.inventory import slices, validation
from dra_gpu.inventory.model import View
from dra_gpu.inventory.options import ConsumableShares, ViewOptions, consumable_shares
from tests.unit.inventory import boards
from tests.unit.inventory.boards import H100
from tests.unit.inventory.builders import gpu
from tests.unit.inventory.published import EVERY, layout, talkative
from tests.unit.scheduler.builders import CLASSES, DRIVER, NODE, Cluster, claim, device_class, request, share

MODES = ["memory", "unlimited", "1", "4"]


def built(*gpus, mode, **options):
    return layout(*gpus, options=ViewOptions(consumable_shares=consumable_shares(mode), **options))


def device(mode, name="gpu-0", *gpus):
    return built(*(gpus or (gpu(0),)), mode=mode).inventory.devices[name].wire


def policies(wire):
    """Return value, default, minimum and step of each capacity."""
    found = {}
    for name, one in wire.capacity.items():
        policy = one.request_policy
        found[name] = (one.value, policy.default, policy.valid_range.min, policy.valid_range.step)
    return found


def cluster(*gpus, mode):
    contents = slices.arrange(built(*gpus, mode=mode, views=EVERY))
    pool = resource_v1.ResourcePool(NODE, 1, len(contents))
    published = [
        resource_v1.ResourceSlice(
            metadata=resource_v1.ObjectMeta(name=f"slice-{number}"),
            spec=resource_v1.ResourceSliceSpec(
                DRIVER, pool, NODE, devices=list(one.devices), shared_counters=list(one.counter_sets)
            ),
        )
        for number, one in enumerate(contents)
    ]
    return Cluster(msgspec.to_builtins(published), [*CLASSES, device_class("mig", "mig")])


def test_what_an_operator_writes():
    assert consumable_shares("disabled") is None
    assert consumable_shares("memory") == ConsumableShares(counts_memory=True)
    assert consumable_shares("unlimited") == ConsumableShares()
    assert consumable_shares("7") == ConsumableShares(number=7)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "Memory", "4 ", "10000", "\u0664", "all"])
def test_anything_else_is_refused_with_what_it_may_be(text):
    with pytest.raises(ValueError, match="must be disabled, memory, unlimited, or a number"):
        consumable_shares(text)


def test_without_the_option_a_gpu_is_one_claims_alone():
    wire = device("disabled")

    assert wire.allow_multiple_allocations is None
    assert wire.capacity == {"memory": resource_v1.DeviceCapacity(value="80Gi")}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("memory", {"memory": ("80Gi", "80Gi", "1Mi", "1Mi")}),
        ("unlimited", {"memory": ("80Gi", "0", "0", None)}),
        ("4", {"memory": ("80Gi", "0", "0", None), "shares": ("4", "1", "1", "1")}),
        ("1", {"memory": ("80Gi", "0", "0", None), "shares": ("1", "1", "1", None)}),
    ],
)
def test_what_a_claim_takes_of_a_gpu(mode, expected):
    wire = device(mode)

    assert wire.allow_multiple_allocations
    assert policies(wire) == expected


def test_a_partition_is_shared_in_the_same_way_and_its_engines_are_not_used_up_by_the_first_claim():
    devices = built(talkative(H100), mode="memory").inventory.devices.values()
    wire = next(one for one in devices if one.view is View.MIG).wire

    assert wire.allow_multiple_allocations
    assert {name: default for name, (_, default, _, _) in policies(wire).items() if default != "0"} == {
        "memory": wire.capacity["memory"].value
    }


def test_memory_that_is_not_known_cannot_be_counted_so_that_the_gpu_stays_one_claims_alone():
    assert device("memory", "gpu-0", gpu(0, memory_bytes=None)).allow_multiple_allocations is None
    assert device("unlimited", "gpu-0", gpu(0, memory_bytes=None)).allow_multiple_allocations


def test_other_views_are_what_they_were():
    plain, open_ = (built(gpu(0), mode=mode).inventory.devices for mode in ("disabled", "memory"))

    assert [name for name in plain if plain[name] != open_[name]] == ["gpu-0"]


@pytest.mark.parametrize("board", boards.BOARDS)
@pytest.mark.parametrize("mode", MODES)
def test_the_api_server_takes_the_slices_of_every_board(board, mode):
    profiles = tuple(row["name"] for row in boards.rows(board))
    whole = built(
        talkative(board), mode=mode, views=EVERY, mig_profiles=profiles, shared_mig_profiles=profiles, numa_lists=True
    )

    assert validation.check(DRIVER, NODE, slices.arrange(whole))[1] == []
    for one in whole.inventory.devices.values():
        assert len(one.wire.attributes) + len(one.wire.capacity) <= 32
        if one.view in (View.GPU, View.MIG):
            for value, default, minimum, step in policies(one.wire).values():
                amounts = [quantity.parse(text) for text in (value, default, minimum, step or "0")]
                assert amounts[2] <= amounts[1] <= amounts[0]
                assert amounts[2] + amounts[3] <= amounts[0]
                assert not amounts[3] or (amounts[1] - amounts[2]) % amounts[3] == 0


def test_by_number_the_scheduler_gives_a_gpu_to_so_many_claims():
    node = cluster(gpu(0), mode="2")

    assert [node.devices(claim(name=f"job-{number}")) for number in range(2)] == [["gpu-0"]] * 2
    assert str(node.reason("gpu-0", claim())) == "capacity 'shares': 1 wanted, 0 free"


def test_by_memory_a_claim_takes_what_it_asks_for_or_all():
    node = cluster(gpu(0), mode="memory")
    part = request(capacity={"requests": {"memory": "30Gi"}})

    assert [node.devices(claim(part, name=f"job-{number}")) for number in range(2)] == [["gpu-0"]] * 2
    assert str(node.reason("gpu-0", claim(part))) == "capacity 'memory': 30Gi wanted, 20Gi free"
    node.release("job-0")
    node.release("job-1")
    assert node.devices(claim(name="all")) == ["gpu-0"]
    assert node.refused(claim(part))


def test_unlimited_is_without_end_and_still_excludes_the_other_views():
    node = cluster(talkative(H100), mode="unlimited")

    assert [node.devices(claim(name=f"job-{number}")) for number in range(20)] == [["gpu-0"]] * 20
    assert node.refused(claim(share()))
    assert node.refused(claim(request("mig")))


def test_partitions_are_shared_too():
    node = cluster(talkative(H100), mode="2")
    small = request("mig", selectors=[{"cel": {"expression": f'device.attributes["{DRIVER}"].profile == "7g.80gb"'}}])

    first, second = (node.devices(claim(small, name=f"job-{number}")) for number in range(2))
    assert first == second
    assert node.refused(claim(small))
