"""Capacity that moves between claims, on the node: the shipped plugin, and a controller that the test plays."""

import asyncio
import random
import shutil

import pytest

from dra_gpu_sim.local import containers
from tests.component.node.node_under_fire import rows
from tests.component.node.resizes import HandMadeResize
from tests.component.node.sharing import CLASSIC, GIB, VIEWS


def bound(sharing, client) -> tuple[int, int]:
    """The percent and the GiB that a program really has."""
    truth = sharing.truth(client)
    return truth.sm_percent, truth.memory_limit // GIB


async def shrunk(sharing, name="training") -> tuple:
    """A claim of 90 % that has been shrunk to 20 %, and what it gave back is published."""
    pod = await sharing.pod(name, 90, "60Gi")
    resize = HandMadeResize(sharing, pod, 90, "60Gi")
    resize.want(20, "16Gi")
    await resize.reserve()
    await resize.given_back(70, "44Gi")
    return pod, resize


async def test_a_share_shrinks_under_a_running_program_lets_others_in_and_grows_back_without_a_restart(sharing):
    pod = await sharing.pod("training", 90, "60Gi")
    program = sharing.client(pod)
    assert program.command("alloc 40G").startswith("ok")
    resize = HandMadeResize(sharing, pod, 90, "60Gi")
    hardware = resize.published()

    resize.want(20, "16Gi")
    await resize.until(lambda node: [one["pid"] for one in node.get("waitingFor", ())] == [program.pid])
    assert resize.node["inForce"]["memory"] == "60Gi"
    assert program.command("alloc 1G").startswith("CUDA_ERROR_OUT_OF_MEMORY")
    assert program.command("free 30G").startswith("ok")
    await resize.until(lambda node: node["inForce"]["memory"] == "16Gi")
    assert resize.node["inForce"]["computePercent"] == "90"
    program.kill()  # only its namespace's percentage waits for that
    await resize.in_force(20, "16Gi")
    assert resize.published() == hardware
    await resize.reserve()
    await resize.given_back(70, "44Gi")
    assert resize.published()["computePercent"] == "170"
    program = sharing.client(pod)
    other = await sharing.pod("inference", 70, "40Gi")
    assert bound(sharing, program) == (20, 16)

    resize.want(90, "60Gi")
    resize.permit(160, "104Gi", 2)
    await resize.until(lambda node: node["reason"] == "ShareNotFree")
    await sharing.end(other)
    await resize.until(lambda node: node["inForce"]["memory"] == "60Gi")
    program.kill()
    await resize.in_force(90, "60Gi")
    resize.permit(90, "60Gi")
    await resize.given_back(0, "0")
    assert resize.published() == hardware
    assert resize.node["releasedRound"] == resize.node["round"] == 1
    resize.release()
    assert bound(sharing, sharing.client(pod)) == (90, 60)


async def test_killed_again_and_again_a_resize_goes_on_and_nothing_is_published_twice(sharing):
    pod = await sharing.pod("training", 90, "60Gi")
    resize, rng = HandMadeResize(sharing, pod, 90, "60Gi"), random.Random(2027)
    hardware = resize.published()

    for turn in range(4):
        resize.want(*((20, "16Gi") if turn % 2 == 0 else (30, "20Gi")))
        await asyncio.sleep(rng.uniform(0.0, 0.05))  # somewhere in the middle; what is asserted holds wherever it is
        await sharing.world.restart(VIEWS)
    resize.want(20, "16Gi")
    await resize.in_force(20, "16Gi")
    await resize.reserve()
    await sharing.world.restart(VIEWS)
    await resize.given_back(70, "44Gi")
    await sharing.world.restart(VIEWS)
    await resize.given_back(70, "44Gi")
    assert resize.published()["computePercent"] == "170"
    assert bound(sharing, sharing.client(pod)) == (20, 16)

    await sharing.world.unprepare(pod.claim)
    await sharing.world.restart(VIEWS)
    await resize.given_back(0, "0")
    assert resize.published() == hardware
    assert resize.node["prepared"] is False
    resize.delete()
    await sharing.world.until(lambda: rows(sharing.world, "SELECT * FROM resizes") == [])


@pytest.mark.parametrize("rebooted", [False, True], ids=["journal lost", "rebooted"])
async def test_what_was_given_back_survives(sharing, rebooted):
    pod, resize = await shrunk(sharing)
    before = resize.published()
    if rebooted:
        await sharing.reboot()
        sharing.service = await sharing.cluster.start_mps()
    else:
        await sharing.world.plugin.kill()
        for path in sharing.cluster.paths.state.glob("journal.db*"):
            path.unlink()
        sharing.kubelet.restart()
    await sharing.world.start(VIEWS)

    await sharing.world.prepared(pod.claim)

    await sharing.world.until(lambda: resize.published() == before)
    await resize.in_force(20, "16Gi")
    await resize.given_back(70, "44Gi")
    assert bound(sharing, sharing.client(pod)) == (20, 16)


def put_process(proc, pid: int, pod, environment: dict[str, str]) -> None:
    """Put a process of a pod into a procfs."""
    directory = proc / str(pid)
    directory.mkdir(parents=True)
    (directory / "cgroup").write_text(f"0::{pod.cgroup}\n")
    (directory / "environ").write_text("\0".join(f"{name}={value}" for name, value in environment.items()))
    (directory / "cmdline").write_text("python\0train.py\0")


async def test_under_classic_mps_a_container_that_was_started_with_more_is_waited_for(make_sharing, tmp_path):
    sharing = await make_sharing("P-dc8", f"--proc-root={tmp_path}", driver_version=CLASSIC)
    pod = await sharing.pod("training", 90, "60Gi")
    put_process(tmp_path, 4711, pod, dict(pod.container.env))
    resize = HandMadeResize(sharing, pod, 90, "60Gi")

    resize.want(20, "16Gi")
    await resize.until(lambda node: node.get("waitingFor") == [{"pid": 4711, "command": "python train.py"}])
    assert resize.node["inForce"]["computePercent"] == "90"
    shutil.rmtree(tmp_path / "4711")
    await resize.in_force(20, "16Gi")

    assert resize.node["appliesTo"]["computePercent"] == "NewProcesses"
    container = containers.with_devices(sharing.cluster.paths.cdi, pod.devices[0].cdi_ids)
    assert container.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "20"
