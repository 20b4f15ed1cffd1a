"""What validation lets pass, the node prepares; what it calls an error, cannot be allocated or is refused there."""

from pathlib import Path

import msgspec
import yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dra_gpu.api.resource_claim_v1 import DeviceClass, ResourceClaim
from dra_gpu.api.resource_v1 import ObjectMeta, ResourcePool, ResourceSlice, ResourceSliceSpec
from dra_gpu.claims.enforcement import Surroundings
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.plan import Plan, make_plan
from dra_gpu.inventory import slices
from dra_gpu.inventory.options import ViewOptions
from dra_gpu.inventory.sharing import MpsProtocol, SharingAbility
from dra_gpu.scheduler import allocator
from dra_gpu.scheduler.held import Held
from dra_gpu.scheduler.model import Node
from tests.unit.inventory import boards
from tests.unit.inventory.boards import H100
from tests.unit.inventory.published import EVERY, layout
from tests.unit.scheduler.builders import DRIVER, NODE
from tests.unit.validation.manifests import MPS, choice, claim, config, errors, problems, request, share

CLASSES = [
    msgspec.convert(one, DeviceClass)
    for one in yaml.safe_load_all((Path(__file__).parents[3] / "deploy" / "deviceclasses.yaml").read_text())
]
UID = "7a3c6f10-58f1-4b8e-9a3e-0d5b2b0c1d2e"
LAYOUT = layout(
    *(boards.partitionable(H100, number) for number in range(5)),
    options=ViewOptions(EVERY, mig_profiles=("3g.40gb",), shared_mig_profiles=("3g.40gb",)),
)
CONTENTS = slices.arrange(LAYOUT)
SLICES = [
    ResourceSlice(
        metadata=ObjectMeta(name=f"slice-{number}"),
        spec=ResourceSliceSpec(
            DRIVER,
            ResourcePool(NODE, 1, len(CONTENTS)),
            NODE,
            devices=list(one.devices),
            shared_counters=list(one.counter_sets),
        ),
    )
    for number, one in enumerate(CONTENTS)
]
AROUND = Surroundings(lambda device: SharingAbility(MpsProtocol.CLASSIC if device.placement else MpsProtocol.NAMESPACE))


def prepared(document):
    """Tell whether a claim is allocated and then prepared."""
    asked = msgspec.json.decode(msgspec.json.encode(document), type=ResourceClaim)
    decided = allocator.allocate([asked], classes=CLASSES, slices=SLICES, held=Held.of([]), node=Node(NODE, {}))
    if not isinstance(decided, allocator.Allocated):
        return False
    (allocation,) = decided.allocations
    plan = make_plan(
        ClaimRef("team", "c", UID), allocation, driver=DRIVER, pool=NODE, inventory=LAYOUT.inventory, around=AROUND
    )
    return isinstance(plan, Plan)


NAMES = st.sampled_from(["a", "b"])
VIEWS = ["gpu.nvidia.com", "shared.gpu.nvidia.com", "mig.nvidia.com", "shared.mig.nvidia.com"]
SLICED = {"sharing": {"strategy": "TimeSlicing"}}
PER_DEVICE = {"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"1": "1Gi"}}}}
CONFIGS = st.one_of(
    st.tuples(st.sampled_from(["GpuConfig", "MigDeviceConfig"]), st.sampled_from([{}, MPS, SLICED, PER_DEVICE])),
    st.tuples(st.just("SharedGpuConfig"), st.sampled_from([{}, {"strategy": "TimeSlicing"}, {"strategy": "MPS"}])),
    st.tuples(st.just("VfioDeviceConfig"), st.just({})),
    st.tuples(st.just("SharedGpuConfig"), st.just({"strategy": "TimeSlicing", "enforcement": "Required"})),
)


@st.composite
def claims(draw):
    """Make claims as people write them, right and wrong."""
    names = draw(st.sampled_from([["a"], ["a", "b"]]))
    asked = []
    for name in names:
        cls = draw(st.sampled_from(VIEWS))
        asked.append(
            draw(
                st.sampled_from(
                    [
                        request(name, cls),
                        request(name, cls, count=2),
                        share(name, cls) if "shared" in cls else request(name, cls),
                        share(name, cls, computePercent="120"),
                        request(name, "monitor.nvidia.com", adminAccess=True),
                        request(name, "monitor.nvidia.com"),
                        choice(name, ("x", cls)),
                    ]
                )
            )
        )
    known = [
        name for one in asked for name in (one["name"], *(f"{one['name']}/x" for _ in one.get("firstAvailable", ())))
    ]
    chosen = draw(st.lists(st.tuples(CONFIGS, st.none() | st.sampled_from(known).map(lambda name: [name])), max_size=2))
    # Kubernetes 1.37 forgets the names of a config that names every request, so that one is left that none names.
    asked.append(request("watch", "monitor.nvidia.com", adminAccess=True))
    return claim(*asked, configs=[config(kind, requests=named, **fields) for (kind, fields), named in chosen])


@given(claims())
@settings(max_examples=100)
@example(claim(request("a"), configs=[config(requests=["a"], **PER_DEVICE)]))
@example(claim(request("a", count=2), configs=[config(**MPS)]))
def test_a_claim_without_errors_is_prepared_and_one_with_errors_is_not(document):
    assume(not any("cannot be mixed" in problem.reason for problem in problems(document)))

    assert prepared(document) is (errors(document) == [])
