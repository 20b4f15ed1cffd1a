"""A hostile claim through the shipped process: it is refused on its own, and nothing of it comes to anything.

Its neighbours, of the same call and of the same GPU, get what they ask for; no file is made; what it says stands in one
line of the log, of bounded length, and can be nothing else.
"""

import json
import uuid
from pathlib import Path

import pytest

from dra_gpu_sim.local.kubelet import Claim
from tests.component.node import attacking_claims
from tests.component.node.node_under_fire import foreign_files, records

LONGEST_ERROR, LONGEST_LINE = 2_000, 8_000  # characters; JSON writes one of a name as up to twelve
REFUSED = "a claim is refused"


def put(world, name: str, allocation) -> Claim:
    made = world.api.put(
        "resourceclaims", {"metadata": {"name": name}, "status": {"allocation": allocation}}, "default"
    )
    return Claim("default", name, made["metadata"]["uid"])


def log_lines(world, after: int = 0) -> list[dict]:
    """Every line that the plugin has logged, each of which must be JSON of a bounded length."""
    lines = world.plugin.read_log()[after:].splitlines()
    assert all(line.isascii() and len(line) < LONGEST_LINE for line in lines)
    return [json.loads(line) for line in lines]


async def answers_to(world, name: str, allocation, neighbour: Claim) -> str:
    """Prepare a hostile claim and its neighbour in one call, and give both back; return why it was refused."""
    claim = put(world, name, allocation)
    before = len(world.plugin.read_log())

    answers = await world.prepare(claim, neighbour)

    refusal = answers[claim.uid].error
    assert refusal, name
    assert len(refusal) < LONGEST_ERROR, name
    assert answers[neighbour.uid].error == "", name
    assert len(answers[neighbour.uid].devices) == 1, name
    assert world.cdi_files == [f"k8s.gpu.nvidia.com-claim_{neighbour.uid}.json"], name
    [told] = [line for line in log_lines(world, before) if line["event"] == REFUSED]
    assert name in told["claim"], name
    assert told["reason"] == refusal, name
    assert set((await world.unprepare(claim, neighbour)).values()) == {""}, name
    return refusal


def nothing_came_of_it(world) -> None:
    assert not Path(attacking_claims.OWNED).exists()
    assert world.plugin.process.returncode is None
    assert records(world) == {}
    assert world.cdi_files == []
    log = world.plugin.read_log()
    assert "internal error" not in log
    assert "unexpected error" not in log


async def test_hostile_claims_of_whole_gpus_are_refused_beside_a_neighbour_that_is_served(make_world):
    world = await make_world(gpus=2)
    await world.start(devices=4)
    neighbour = world.claim("neighbour", "gpu-1")
    await world.prepared(neighbour)
    await world.unprepare(neighbour)
    before, files = world.node.snapshot(), foreign_files(world)

    for name, allocation in attacking_claims.of_whole_gpus().items():
        await answers_to(world, name, allocation, neighbour)
        assert world.node.snapshot() == before, name

    assert foreign_files(world) == files
    nothing_came_of_it(world)


async def test_hostile_shares_are_refused_beside_a_share_whose_program_goes_on(sharing):
    world = sharing.world
    job = await sharing.pod("running", 20, "10Gi")
    client = sharing.client(job)
    neighbour = sharing.claim("neighbour", results=[sharing.result("neighbour", 10, "5Gi")])
    running = f"k8s.gpu.nvidia.com-claim_{job.claim.uid}.json"
    await world.prepared(neighbour)
    await world.unprepare(neighbour)
    held, names, files = world.node.snapshot(), await sharing.share_names(), foreign_files(world)
    share_id = str(uuid.uuid5(uuid.NAMESPACE_OID, "hostile"))

    for name, allocation in attacking_claims.of_shares(share_id).items():
        claim = put(world, name, allocation)
        answers = await world.prepare(claim, neighbour)

        assert answers[claim.uid].error, name
        assert len(answers[claim.uid].error) < LONGEST_ERROR, name
        assert len(answers[neighbour.uid].devices) == 1, name
        assert sorted(world.cdi_files) == sorted([running, f"k8s.gpu.nvidia.com-claim_{neighbour.uid}.json"]), name
        assert set((await world.unprepare(claim, neighbour)).values()) == {""}, name
        assert await sharing.share_names() == names, name

    assert client.command("alloc 1G").startswith("ok")
    assert world.node.snapshot().limits == held.limits
    assert foreign_files(world) == files
    log_lines(world)
    client.kill()
    await sharing.end(job)
    assert sharing.left() == {}


@pytest.mark.parametrize("name", ["a" * 253, "xn--pple-43d." + "b" * 200])
async def test_the_longest_names_that_kubernetes_has_are_served(make_world, name):
    world = await make_world(gpus=1)
    await world.start(devices=2)
    made = world.api.put(
        "resourceclaims",
        {
            "metadata": {"name": name},
            "status": {"allocation": attacking_claims.allocation(attacking_claims.one("gpu-0"))},
        },
        "n" * 63,
    )
    claim = Claim("n" * 63, name, made["metadata"]["uid"])

    await world.prepared(claim)

    assert world.cdi_files == [f"k8s.gpu.nvidia.com-claim_{claim.uid}.json"]
    assert await world.unprepare(claim) == {claim.uid: ""}
    nothing_came_of_it(world)
