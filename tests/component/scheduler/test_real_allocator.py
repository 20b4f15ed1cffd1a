"""The allocator against the real one of Kubernetes v1.37: same verdict, same devices, same consumed capacity."""

import json
import subprocess

import msgspec
import pytest

from dra_gpu.api.resource_claim_v1 import DeviceClass, ResourceClaim
from dra_gpu.api.resource_v1 import ResourceSlice
from dra_gpu.scheduler import allocator
from dra_gpu.scheduler.cel import Evaluator, SelectorError
from dra_gpu.scheduler.held import Held
from dra_gpu.scheduler.model import Candidate, DeviceId, Node
from tests.component.go_programs import builds_go, go_program
from tests.component.scheduler import expressions
from tests.component.scheduler.worlds import CLASSES, World

pytestmark = builds_go

WORLDS, PODS = 200, 5


@pytest.fixture(scope="module")
def real():
    """The real allocator as a process."""
    with subprocess.Popen(
        [go_program("go-allocator")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield lambda question: ask(process, question)
        process.stdin.close()


def ask(process, question):
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def decoded(objects, kind):
    return msgspec.json.decode(msgspec.json.encode(objects), type=list[kind])


def ours(world, claims):
    return allocator.allocate(
        decoded(claims, ResourceClaim),
        classes=decoded(CLASSES, DeviceClass),
        slices=decoded(world.slices, ResourceSlice),
        held=Held.of(decoded(world.allocated, ResourceClaim)),
        node=Node("node-0", world.node["metadata"]["labels"]),
    )


def without_ids(allocations):
    """Share ids are random: what counts is where there is one."""
    found = msgspec.to_builtins(msgspec.json.decode(msgspec.json.encode(allocations)))
    for allocation in found:
        for result in allocation["devices"].get("results") or ():
            if "shareID" in result:
                result["shareID"] = "some"
            if result.get("consumedCapacity") == {}:
                del result["consumedCapacity"]
        allocation["devices"] = {key: value for key, value in allocation["devices"].items() if value}
    return found


def verdict(answer):
    if answer.get("error"):
        return allocator.Failure.INVALID_POOL if "invalid resource pools" in answer["error"] else "error"
    return "fits" if answer["allocations"] is not None else allocator.Failure.NO_FIT


@pytest.mark.parametrize("seed", range(0, WORLDS, 20))
def test_the_real_allocator_gives_the_same_verdict_and_the_same_devices(real, seed):
    fitting = 0
    for number in range(seed, seed + 20):
        world = World(number)
        for pod in range(PODS):
            claims = world.pod(pod)
            question = {"node": world.node, "classes": CLASSES, "slices": world.slices, "claims": claims}
            answer = real(question | {"allocated": world.allocated})
            result = ours(world, claims)
            where = f"world {number}, pod {pod}: {json.dumps(claims)}\nreal: {answer.get('error')}\nours: {result}"
            if isinstance(result, allocator.Allocated):
                assert verdict(answer) == "fits", where
                assert without_ids(result.allocations) == without_ids(answer["allocations"]), where
                world.hold(claims, answer["allocations"])
                fitting += 1
            else:
                failure = "error" if result.failure is allocator.Failure.INVALID_INPUT else result.failure
                assert verdict(answer) == failure, where
            world.release()
            world.change()
    assert fitting >= 10, "almost nothing fits in these worlds: they compare refusals only"


def evaluated(evaluator, expression, candidate):
    try:
        return str(evaluator.matches(expression, candidate)).lower()
    except SelectorError:
        return "error"


def test_selectors_mean_what_they_mean_in_kubernetes(real):
    spec = {"driver": expressions.GPU, "pool": {"name": "node-0"}, "devices": expressions.DEVICES}
    (published,) = decoded([{"spec": spec}], ResourceSlice)
    answer = real({"slices": [{"spec": spec}], "expressions": expressions.EXPRESSIONS})
    evaluator = Evaluator()
    candidates = [
        Candidate(DeviceId(expressions.GPU, "node-0", device.name), device, published)
        for device in published.spec.devices
    ]
    seen = {
        expression: [evaluated(evaluator, expression, candidate) for candidate in candidates]
        for expression in expressions.EXPRESSIONS
    }
    # Whether a mistake is found when compiling or on a device is not the same: both give the pod up.
    expected = [["error" if word in ("compile", "runtime") else word for word in row] for row in answer["matches"]]
    assert seen == dict(zip(expressions.EXPRESSIONS, expected, strict=True))
