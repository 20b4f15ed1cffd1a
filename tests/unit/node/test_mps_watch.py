from types import SimpleNamespace

import pytest

from dra_gpu.claims.shares import MpsShare
from dra_gpu.claims.steps import ShareOnMps
from dra_gpu.inventory.model import MigPlacement
from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps.service import Daemon, GpuClients, MpsError, MpsErrorKind, Share
from dra_gpu.node.mps_watch import MpsWatch


class Service:
    def __init__(self):
        self.restarts = {"GPU-a": 0, "GPU-b": 0}
        self.shares = {}
        self.calls = 0
        self.error = None

    async def clients(self, _gpu=""):
        self.calls += 1
        if self.error:
            raise self.error
        return tuple(
            GpuClients(Daemon(uuid, MpsProtocol.NAMESPACE, "/p", "/s", 1, count), self.shares.get(uuid, ()))
            for uuid, count in self.restarts.items()
        )


def record(name, *gpus):
    share = MpsShare("s", MpsProtocol.NAMESPACE)
    return SimpleNamespace(name=name, steps=tuple(ShareOnMps(gpu, share) for gpu in gpus))


@pytest.fixture
def told():
    return []


@pytest.fixture
def service():
    return Service()


def watch(service, told, *records):
    async def all_records():
        return list(records)

    return MpsWatch(service, all_records, lambda one, note: told.append((one.name, note)))


async def test_a_daemon_that_was_started_again_is_told_to_the_claims_on_its_gpu_alone(service, told):
    watching = watch(service, told, record("a", "GPU-a"), record("b", "GPU-b"), record("whole"))
    await watching.look()

    service.restarts["GPU-a"] = 1
    await watching.look()

    [(name, note)] = told
    assert name == "a"
    assert "GPU-a" in note


async def test_a_restart_is_told_once(service, told):
    watching = watch(service, told, record("a", "GPU-a"))
    await watching.look()
    service.restarts["GPU-a"] = 1

    await watching.look()
    await watching.look()

    assert len(told) == 1


async def test_what_happened_before_the_first_look_is_not_told_again(service, told):
    service.restarts["GPU-a"] = 5

    await watch(service, told, record("a", "GPU-a")).look()

    assert told == []


async def test_a_daemon_that_ended_before_the_second_look_at_it_is_told_too(service, told):
    shared = []

    async def records():
        return shared

    watching = MpsWatch(service, records, lambda one, _note: told.append(one.name))
    await watching.look()
    shared.append(record("a", "GPU-a"))
    service.restarts["GPU-a"] = 1

    await watching.look()

    assert told == ["a"]


async def test_a_node_that_shares_nothing_does_not_call_the_service(service, told):
    await watch(service, told, record("whole")).look()

    assert service.calls == 0


async def test_a_service_that_is_away_is_asked_again_later(service, told):
    watching = watch(service, told, record("a", "GPU-a"))
    await watching.look()
    service.error = MpsError(MpsErrorKind.UNAVAILABLE, "away")
    await watching.look()

    service.error, service.restarts["GPU-a"] = None, 1
    await watching.look()

    assert len(told) == 1


async def test_a_daemon_of_a_partition_is_told_to_the_claim_whose_share_it_has(service, told):
    placement = MigPlacement(0, 2, 1)
    on_partition = SimpleNamespace(
        name="a", steps=(ShareOnMps("GPU-a", MpsShare("mine", MpsProtocol.CLASSIC), placement),)
    )
    elsewhere = SimpleNamespace(
        name="b", steps=(ShareOnMps("GPU-a", MpsShare("other", MpsProtocol.CLASSIC), placement),)
    )
    service.restarts = {"MIG-1": 0}
    service.shares = {"MIG-1": (Share("MIG-1", "mine", MpsProtocol.CLASSIC, "/p", "/s"),)}
    watching = watch(service, told, on_partition, elsewhere)
    await watching.look()

    service.restarts["MIG-1"] = 1
    await watching.look()

    assert [name for name, _ in told] == ["a"]
