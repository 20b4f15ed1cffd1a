"""Other settings of what a claim has whole: in force while its pods run, and gone with the object or the claim."""

import pytest
from msgspec.structs import replace

from dra_gpu.api.claim_resize import ClaimResize, ClaimResizeMeta, ClaimResizeStatus, MpsSettings, Target
from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.claims.outcome import ClaimRef, Prepared
from dra_gpu.claims.resize.state import ShareKey
from dra_gpu.claims.shares import MEBI, claim_share_name
from tests.unit.claims.resize.resized import ResizedNode
from tests.unit.claims.world import DRIVER, LONG, POOL, config, share_id

REF = ClaimRef("team", "whole", "claim-w")
KEY = ShareKey(REF.uid, "gpu-0", "")
MPS = {"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 80}}}


@pytest.fixture
async def node(tmp_path):
    async with ResizedNode(tmp_path).running() as running:
        yield running


class Object:
    """The object of the claim, and what the node says of it."""

    def __init__(self, node) -> None:
        self.node = node
        target = Target(REF.uid, DRIVER, POOL, "gpu-0")
        status = ClaimResizeStatus(node_name=POOL, target=target, permit=1, observed_generation=1)
        meta = ClaimResizeMeta(name=REF.name, namespace=REF.namespace, uid="object", generation=1)
        self.object: ClaimResize | None = ClaimResize(metadata=meta, status=status)
        self.said = None

    async def want(self, **settings):
        """Let the controller want that, and the node visit it."""
        assert self.object is not None
        self.object = replace(self.object, status=replace(self.object.status, **settings))
        return await self.visit()

    async def visit(self):
        visit = await self.node.resizing.visit(KEY, self.object)
        self.said = visit.status
        return visit


async def prepared(node, *configs) -> Object:
    node.api.add(REF, "gpu-0", configs=[config(**one) for one in configs], pods=("pod-w",))
    assert isinstance(await node.prepare(REF), Prepared)
    return Object(node)


async def test_a_time_slice_is_set_and_is_what_was_before_when_nothing_is_wanted_any_more(node):
    resize = await prepared(node)

    await resize.want(time_slice=TimeSliceInterval.LONG)
    assert node.slice_of("gpu-0") is TimeSliceInterval.LONG
    assert (resize.said.reason, resize.said.observed_generation) == ("", 1)
    await resize.want(time_slice=None)

    assert node.slice_of("gpu-0") is TimeSliceInterval.DEFAULT
    assert await node.journal.kept() == ()


async def test_a_claim_with_a_time_slice_of_its_own_has_that_again(node):
    resize = await prepared(node, LONG)

    await resize.want(time_slice=TimeSliceInterval.SHORT)
    assert node.slice_of("gpu-0") is TimeSliceInterval.SHORT
    resize.object = None
    await resize.visit()

    assert node.slice_of("gpu-0") is TimeSliceInterval.LONG


async def test_a_claim_that_goes_takes_the_setting_along(node):
    resize = await prepared(node)
    await resize.want(time_slice=TimeSliceInterval.LONG)

    await node.unprepare(REF)
    await resize.visit()

    assert node.slice_of("gpu-0") is TimeSliceInterval.DEFAULT
    assert await node.journal.kept() == ()
    assert resize.said.prepared is False


async def test_a_claim_that_is_prepared_again_keeps_the_setting(node):
    resize = await prepared(node)
    await resize.want(time_slice=TimeSliceInterval.LONG)
    node.vendor.slices.clear()

    await node.prepare(REF)

    assert node.slice_of("gpu-0") is TimeSliceInterval.LONG


async def test_limits_of_processes_on_mps_change_while_none_is_attached(node):
    resize = await prepared(node, MPS)
    share = node.gpu, claim_share_name(REF.uid)
    node.mps.attached[share] = (4711,)

    visit = await resize.want(mps=MpsSettings(active_thread_percentage=30, pinned_device_memory_limit="2Gi"))
    assert visit.waiting
    assert [one.pid for one in resize.said.waiting_for] == [4711]
    assert node.mps.held[share].compute_percent == 80
    assert isinstance(await node.prepare(REF), Prepared)
    node.mps.attached[share] = ()
    await resize.visit()

    assert node.mps.held[share].compute_percent == 30
    assert node.mps.held[share].memory_bytes == 2048 * MEBI
    assert resize.said.reason == ""


@pytest.mark.parametrize(
    ("configs", "wanted", "reason"),
    [
        ((MPS,), {"time_slice": TimeSliceInterval.LONG}, "SharedByMps"),
        ((), {"mps": MpsSettings(active_thread_percentage=30)}, "NotOnMps"),
        ((MPS,), {"mps": MpsSettings(pinned_device_memory_limit="a lot")}, "InvalidSettings"),
    ],
)
async def test_what_cannot_be_is_said_with_its_reason(node, configs, wanted, reason):
    resize = await prepared(node, *configs)

    await resize.want(**wanted)

    assert resize.said.reason == reason
    assert resize.said.message
    assert await node.journal.kept() == ()


async def test_a_gpu_that_several_claims_have_as_a_whole_keeps_the_time_slice_that_is_theirs_together(node):
    resize = Object(node)
    target = replace(resize.object.status.target, share_id=share_id(1))

    resize.object = replace(resize.object, status=replace(resize.object.status, target=target))

    assert node.resizing.key_of(resize.object) == KEY
