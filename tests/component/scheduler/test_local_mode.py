"""The local mode's scheduler: deployed DeviceClasses, published slices, claims as they lie in the API server."""

import tempfile
from pathlib import Path

import pytest

from dra_gpu_sim.local.allocator import UnschedulableError
from dra_gpu_sim.local.cluster import LocalCluster
from tests.unit.scheduler.builders import node_with_gpus

SHARE = [
    {
        "name": "part",
        "exactly": {
            "deviceClassName": "shared.gpu.nvidia.com",
            "capacity": {"requests": {"computePercent": "20", "memory": "10Gi"}},
        },
    }
]


@pytest.fixture
async def cluster():
    with tempfile.TemporaryDirectory(prefix="dg-") as directory:
        async with LocalCluster(Path(directory), gpus=1) as cluster:
            for published in node_with_gpus(1):
                cluster.api.put("resourceslices", published)
            yield cluster


def results(cluster, claim):
    (found,) = (item for item in cluster.api.objects("resourceclaims") if item["metadata"]["uid"] == claim.uid)
    return found["status"]["allocation"]["devices"]["results"]


async def test_five_jobs_get_a_fifth_of_a_gpu_each_and_a_sixth_gets_the_first_that_comes_free(cluster):
    jobs = [cluster.add_claim(f"job-{number}", requests=SHARE) for number in range(5)]
    shares = [result for job in jobs for result in results(cluster, job)]
    assert {share["device"] for share in shares} == {"gpu-0-shared"}
    assert len({share["shareID"] for share in shares}) == 5
    assert shares[0]["consumedCapacity"] == {"computePercent": "20", "memory": "10Gi"}
    with pytest.raises(UnschedulableError, match="capacity 'computePercent': 20 wanted, 0 free"):
        cluster.add_claim("job-5", requests=SHARE)
    cluster.remove_claim(jobs[2])
    assert results(cluster, cluster.add_claim("job-5", requests=SHARE))


async def test_a_whole_gpu_is_refused_while_parts_of_it_are_in_use(cluster):
    cluster.add_claim("job", requests=SHARE)
    with pytest.raises(UnschedulableError, match="counter memory of gpu-0: 80Gi wanted, 0 free"):
        cluster.add_claim("whole")
