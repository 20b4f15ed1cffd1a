"""The MPS service on MIG devices: a daemon for each, and nothing of the GPU itself is changed."""

import subprocess

import pytest

from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps.service import Limits, MpsError, MpsErrorKind
from dra_gpu.vendors.nvidia.compute_mode import ComputeMode
from tests.component.mps.conftest import CLASSIC, NAMESPACE, Service

A, B = "s_" + "a" * 32, "s_" + "b" * 32
HALF = Limits(compute_percent=50, memory_bytes=10 << 30)


def partition(service: Service, *profiles: str) -> list[str]:
    """Put the first GPU into MIG mode with an instance of each profile; the UUIDs of its MIG devices."""

    def smi(*arguments: str) -> None:
        subprocess.run([service.node.nvidia_smi, *arguments], check=True, capture_output=True)

    smi("-i", "0", "-mig", "1")
    for profile in profiles:
        smi("mig", "-i", "0", "-cgi", profile, "-C")
    return [ci.uuid for gi in service.node.gpus[0].instances for ci in gi.compute_instances]


@pytest.fixture(params=[CLASSIC, NAMESPACE], ids=["old driver", "new driver"])
def service(request, make_service) -> Service:
    return make_service(request.param)


@pytest.mark.case("C89")
async def test_each_partition_has_a_daemon_of_its_own_and_the_gpu_keeps_its_compute_mode(service):
    first, second = partition(service, "3g.40gb", "3g.40gb")

    shares = [await service.client.share(uuid, A, HALF) for uuid in (first, second)]

    assert len(set(service.daemon_pids())) == 2
    assert {share.protocol for share in shares} == {MpsProtocol.CLASSIC}
    assert shares[0].pipe_directory != shares[1].pipe_directory
    assert service.modes() == [ComputeMode.DEFAULT, ComputeMode.DEFAULT]


async def test_a_client_of_a_partition_gets_that_partition(service):
    _, second = partition(service, "3g.40gb", "3g.40gb")

    client = service.attach(await service.client.share(second, A, HALF))

    assert f"gpu={second} " in client.attached


async def test_the_last_share_takes_the_daemon_of_its_partition_along_and_no_other(service):
    first, second = partition(service, "3g.40gb", "3g.40gb")
    await service.client.share(first, A, HALF)
    kept = service.attach(await service.client.share(second, B, HALF))

    await service.client.stop(first, A)

    (left,) = await service.client.clients()
    assert left.daemon.gpu == second
    assert kept.running


async def test_a_partition_that_is_gone_is_named(service):
    (uuid,) = partition(service, "1g.10gb")
    subprocess.run([service.node.nvidia_smi, "mig", "-i", "0", "-dci"], check=True, capture_output=True)

    with pytest.raises(MpsError, match=f"MIG device {uuid}: no GPU of this node has it") as refused:
        await service.client.share(uuid, A, HALF)

    assert refused.value.kind is MpsErrorKind.TRANSIENT


async def test_shares_are_given_up_although_their_partition_was_destroyed(service):
    (uuid,) = partition(service, "1g.10gb")
    await service.client.share(uuid, A, HALF)
    (pid,) = service.daemon_pids()
    with service.node.state() as state:
        state.gpus[0].gi[0].ci[0].used = state.gpus[0].gi[0].used = 0

    await service.client.stop(uuid, A)

    assert service.daemon_pids() == []
    assert await service.client.clients() == ()
    assert pid
