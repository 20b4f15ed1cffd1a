from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.vendors.base import ShareEdits
from dra_gpu.vendors.nvidia.share_edits import share_edits
from tests.unit.inventory.builders import GIB, gpu


def edits(protocol, **limits):
    return share_edits(gpu(0), ShareEdits("/host/pipe/s_1", "/host/shm", protocol, **limits))


def test_a_container_reaches_its_own_share_and_never_cudas_default_directory():
    made = edits(MpsProtocol.NAMESPACE, compute_percent=20, memory_bytes=10 * GIB)

    assert made.env == ("CUDA_MPS_PIPE_DIRECTORY=/run/dra-gpu/mps",)
    assert {mount.container_path: mount.host_path for mount in made.mounts} == {
        "/run/dra-gpu/mps": "/host/pipe/s_1",
        "/dev/shm": "/host/shm",
    }


def test_classic_limits_stand_in_the_environment_by_uuid_and_in_whole_mebibytes():
    made = edits(MpsProtocol.CLASSIC, compute_percent=20, memory_bytes=10 * GIB, low_priority=True)

    assert made.env[1:] == (
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20",
        f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={gpu(0).uuid}=10240M",
        "CUDA_MPS_CLIENT_PRIORITY=1",
    )


def test_a_limit_that_nobody_asked_for_is_not_set():
    assert edits(MpsProtocol.CLASSIC).env == ("CUDA_MPS_PIPE_DIRECTORY=/run/dra-gpu/mps",)


def test_a_share_of_a_partition_is_limited_by_the_uuid_of_the_partition():
    made = edits(MpsProtocol.CLASSIC, memory_bytes=GIB, partition="MIG-5")

    assert made.env[1:] == ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=MIG-5=1024M",)
