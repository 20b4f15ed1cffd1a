"""The check before an uninstall, as the shipped process."""

import asyncio
import sys

PATIENCE = 60.0


async def check(cluster, *more):
    """Run it; returns its status and what it prints."""
    command = (sys.executable, "-m", "dra_gpu", "uninstall-check", f"--kubeconfig={cluster.kubeconfig}", *more)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    return process.returncode, output.decode()


async def test_an_uninstall_is_refused_while_a_claim_has_a_gpu_and_allowed_afterwards(cluster):
    cluster.claim("foreign", driver="gpu.example.com")
    held = cluster.claim("training", cluster.pod("train-0", "Running"))
    release = ("--release=gpus", "--release-namespace=dra-gpu", "--release-revision=3")

    refused = await check(cluster, "--wait=0.1", *release)
    cluster.api.remove("resourceclaims", held["metadata"]["name"], "team-a")
    allowed = await check(cluster, *release)

    assert refused[0] == 1
    assert "team-a/training: node-0/gpu-0, used by train-0;\n" in refused[1]
    assert allowed == (0, "No claim has a device of the driver.\n")


async def test_without_an_answer_of_the_server_it_is_refused(cluster):
    await cluster.api.stop()

    status, text = await check(cluster, "--wait=0.1")

    assert status == 1
    assert text.startswith("It cannot be told whether claims have devices of the driver: cannot list resourceclaims")
