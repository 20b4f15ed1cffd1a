"""A definition of an earlier release is told field by field; a later one, or one that keeps everything, is fine."""

import copy
from dataclasses import dataclass, field

import pytest

from dra_gpu.apiserver.errors import ForbiddenError, NotFoundError, UnavailableError
from dra_gpu.apiserver.resources import CustomResourceDefinition
from dra_gpu.controller.kinds import LOOK_AGAIN_SECONDS, LOOK_SECONDS, Kinds, lacking
from dra_gpu.validation import crds
from tests.unit.apiserver.manual_clock import ManualClock

(NAME, WANTED), *_ = crds.definitions().items()


def changed(change):
    spec = copy.deepcopy(WANTED["spec"])
    change(spec, spec["versions"][0], spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"])
    return list(lacking(WANTED["spec"], spec))


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        (lambda _, __, root: root.pop("status"), ["status"]),
        (lambda _, __, root: root["spec"]["properties"].pop("capacity"), ["spec.capacity"]),
        (lambda _, __, root: root["spec"]["properties"]["capacity"].pop("additionalProperties"), ["spec.capacity.*"]),
        (lambda _, version, __: version.pop("subresources"), ["subresource status"]),
        (lambda _, version, __: version.pop("selectableFields"), ["selectable field .status.nodeName"]),
        (lambda _, version, __: version.update(served=False), ["version v1alpha1"]),
        (lambda spec, _, __: spec.update(versions=[]), ["version v1alpha1"]),
        (lambda _, __, root: root["status"].update({"x-kubernetes-preserve-unknown-fields": True}), []),
        (lambda _, __, root: root["spec"]["properties"].update(later={"type": "string"}), []),
        (lambda spec, _, __: spec["versions"].append({"name": "v9", "served": True}), []),
        (lambda *_: None, []),
    ],
)
def test_what_a_definition_lacks_is_named(change, missing):
    assert changed(change) == missing


def test_fields_within_lists_and_maps_are_looked_at():
    def spec(of_items, of_values):
        properties = {"all": {"items": of_items}, "each": {"additionalProperties": of_values}}
        schema = {"openAPIV3Schema": {"properties": properties}}
        return {"versions": [{"name": "v1", "served": True, "schema": schema}]}

    def has(*names):
        return {"type": "object", "properties": {name: {} for name in names}}

    assert list(lacking(spec(has("a", "b"), has("a", "b")), spec(has("b"), has("a")))) == ["all[].a", "each.*.b"]


@dataclass
class Server:
    """Has one answer to each look; the last one from then on."""

    answers: list
    looks: int = field(default=0, init=False)

    async def get(self, *_, **__):
        answer = self.answers[min(self.looks, len(self.answers) - 1)]
        self.looks += 1
        if isinstance(answer, Exception):
            raise answer
        return CustomResourceDefinition(spec=answer)


def kinds(server, clock):
    return Kinds(server, lambda: {NAME: WANTED}, clock)


async def test_once_all_is_there_it_is_seldom_asked_for():
    server, clock = Server([WANTED["spec"]]), ManualClock()
    looking = kinds(server, clock)

    for _ in range(3):
        assert await looking.problem() == ""
        await clock.sleep(2 * LOOK_SECONDS)

    assert server.looks == 1


async def test_a_kind_that_somebody_removes_is_missed():
    server, clock = Server([WANTED["spec"], NotFoundError("get", "crds", NAME), WANTED["spec"]]), ManualClock()
    looking = kinds(server, clock)
    assert await looking.problem() == ""

    await clock.sleep(LOOK_AGAIN_SECONDS)

    assert "is not there" in await looking.problem()
    await clock.sleep(LOOK_SECONDS)
    assert await looking.problem() == ""


async def test_a_server_that_does_not_answer_takes_nothing_away():
    server, clock = Server([WANTED["spec"], UnavailableError("get", "crds", NAME)]), ManualClock()
    looking = kinds(server, clock)
    assert await looking.problem() == ""

    await clock.sleep(LOOK_AGAIN_SECONDS)

    assert await looking.problem() == ""
    assert server.looks == 2


async def test_what_is_missing_is_looked_at_again_and_not_for_each_question():
    server, clock = Server([NotFoundError("get", "crds", NAME), WANTED["spec"]]), ManualClock()
    looking = kinds(server, clock)

    first, second = await looking.problem(), await looking.problem()
    await clock.sleep(LOOK_SECONDS)

    assert first == second
    assert first.startswith(f"CustomResourceDefinition {NAME} is not there: kubectl apply -f deploy/crds.yaml")
    assert await looking.problem() == ""


async def test_a_right_that_is_missing_is_told_as_the_server_says_it():
    looking = kinds(Server([ForbiddenError("get", "customresourcedefinitions", NAME)]), ManualClock())

    assert "cannot get customresourcedefinitions" in await looking.problem()
