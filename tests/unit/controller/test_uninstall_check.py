"""An uninstall is refused while claims have devices of ours, by name and with every way out."""

from dataclasses import dataclass, field

import msgspec
import pytest

from dra_gpu.api.resource_v1 import ResourceClaim
from dra_gpu.apiserver.errors import ApiError
from dra_gpu.apiserver.kubernetes_api import Listing
from dra_gpu.controller.devices_in_use import Release, Use, refusal, uses
from dra_gpu.controller.uninstall_check import UnknownError, still_in_use
from tests.unit.apiserver.manual_clock import ManualClock

OURS = frozenset({"gpu.nvidia.com"})
RELEASE = Release("gpus", "dra-gpu", "3")


def claim(name, *devices, pods=(), driver="gpu.nvidia.com", users=()):
    results = [{"request": "gpu", "driver": driver, "pool": "node-1", "device": one} for one in devices]
    reserved = [{"resource": "pods", "name": one, "uid": f"uid-{one}"} for one in pods]
    status = {"reservedFor": [*reserved, *users]}
    if devices:
        status["allocation"] = {"devices": {"results": results}}
    return msgspec.convert({"metadata": {"name": name, "namespace": "team-a"}, "status": status}, ResourceClaim)


@dataclass
class Server:
    """Answers each look with the next of these; the last one from then on."""

    answers: list[tuple[ResourceClaim, ...] | ApiError]
    undecodable: tuple[str, ...] = ()
    looks: int = field(default=0, init=False)

    async def list(self, *_, **__):
        answer = self.answers[min(self.looks, len(self.answers) - 1)]
        self.looks += 1
        if isinstance(answer, ApiError):
            raise answer
        return Listing(answer, "1", self.undecodable)


def test_claims_with_devices_of_ours_are_found_and_no_others():
    found = uses(
        [
            claim("waits"),
            claim("b", "gpu-1", pods=["one", "two"]),
            claim("foreign", "gpu-0", driver="gpu.example.com"),
            claim("a", "gpu-0", "gpu-0", "gpu-2"),
        ],
        OURS,
    )

    assert found == [
        Use("team-a/a", ("node-1/gpu-0", "node-1/gpu-2"), ()),
        Use("team-a/b", ("node-1/gpu-1",), ("one", "two")),
    ]


def test_a_claim_that_something_else_than_a_pod_keeps_is_named_with_what_that_is():
    resize = {"apiGroup": "resource.dra-gpu.dev", "resource": "claimresizes", "name": "a", "uid": "u"}

    (found,) = uses([claim("a", "gpu-0", users=[resize])], OURS)

    assert str(found) == "team-a/a: node-1/gpu-0, used by claimresizes/a"


def test_a_refusal_names_claims_devices_and_pods_and_each_way_out():
    text = refusal(uses([claim("a", "gpu-0", pods=["train"]), claim("b", "gpu-1")], OURS), RELEASE)

    assert "team-a/a: node-1/gpu-0, used by train;\n" in text
    assert "team-a/b: node-1/gpu-1, used by nobody any more;\n" in text
    assert "helm uninstall gpus --namespace dra-gpu --no-hooks\n" in text
    assert "helm rollback gpus 3 --namespace dra-gpu\n" in text


def test_a_refusal_of_a_thousand_claims_is_short():
    many = [claim(f"c{n:04}", *(f"gpu-{m}" for m in range(8)), pods=[f"p{m}" for m in range(9)]) for n in range(1000)]

    text = refusal(uses(many, OURS), Release())

    assert "and 980 more claims" in text
    assert "node-1/gpu-2 and 5 more, used by p0, p1, p2 and 6 more" in text
    assert len(text) < 5000
    assert "helm" not in text


async def test_nothing_in_use_is_told_after_one_look():
    server = Server([(claim("waits"),)])

    assert await still_in_use(server, 10, ManualClock()) == []
    assert server.looks == 1


async def test_claims_that_are_being_given_back_are_waited_for():
    server = Server([(claim("a", "gpu-0"),), ApiError("list", "resourceclaims"), ()])

    assert await still_in_use(server, 10, ManualClock()) == []


async def test_claims_that_stay_are_told_after_the_wait():
    clock = ManualClock()

    found = await still_in_use(Server([(claim("a", "gpu-0", pods=["train"]),)]), 10, clock)

    assert [use.claim for use in found] == ["team-a/a"]
    assert clock.time == 10


async def test_a_server_that_does_not_answer_is_no_permission():
    with pytest.raises(UnknownError, match="cannot list resourceclaims"):
        await still_in_use(Server([(claim("a", "gpu-0"),), ApiError("list", "resourceclaims")]), 10, ManualClock())


async def test_a_claim_that_cannot_be_read_is_no_permission():
    with pytest.raises(UnknownError, match="team-a/odd"):
        await still_in_use(Server([()], ("team-a/odd: wrong type",)), 10, ManualClock())
