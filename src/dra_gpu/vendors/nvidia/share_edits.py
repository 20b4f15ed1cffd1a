"""What a container of a share gets beside the GPU's nodes: the way to MPS, and under classic MPS its limits.

The pipe directory of a share is mounted at a path of our own, never at CUDA's default: a container that brings its own
`/tmp/nvidia-mps` must not meet ours. With namespaces the mounted directory is the share's alone, so that a container
reaches no other share. Classic limits stand in the environment and name the GPU or partition by its UUID: one entry for
a GPU that a process does not see drops all of its limits. Source: MPS documentation r615, "Environment Variables".
"""

from dra_gpu.cdi.spec import ContainerEdits, Mount
from dra_gpu.inventory.model import Gpu
from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.vendors.base import ShareEdits

PIPE_DIRECTORY = "/run/dra-gpu/mps"
_MIB = 2**20
# Connecting to a socket needs write access to it, and CUDA makes files in /dev/shm.
_PIPE_OPTIONS = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")


def share_edits(gpu: Gpu, share: ShareEdits) -> ContainerEdits:
    """Return the edits of a share's containers."""
    env = [f"CUDA_MPS_PIPE_DIRECTORY={PIPE_DIRECTORY}"]
    if share.protocol is MpsProtocol.CLASSIC:
        if share.compute_percent is not None:
            env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={share.compute_percent}")
        if share.memory_bytes is not None:
            env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={share.partition or gpu.uuid}={share.memory_bytes // _MIB}M")
        if share.low_priority:
            env.append("CUDA_MPS_CLIENT_PRIORITY=1")
    return ContainerEdits(
        env=tuple(env),
        mounts=(
            Mount(share.pipe_directory, PIPE_DIRECTORY, _PIPE_OPTIONS),
            Mount(share.shm_directory, "/dev/shm", _PIPE_OPTIONS),  # noqa: S108 - the container's, not a file of ours
        ),
    )
