"""When the driver counts as started on a lab: not before the scheduler can see all GPUs of every node."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from lab.api import Api, Json
from lab.deployment import is_published, wait_published
from lab.errors import LabError
from lab.layout import Layout


def published(generation: int, count: int) -> Json:
    return {"spec": {"pool": {"name": "node-1", "generation": generation, "resourceSliceCount": count}}}


class Answers:
    """An API server that lists something else each time, and its last answer ever after."""

    def __init__(self, *answers: Sequence[Json]) -> None:
        self._answers = list(answers)
        self.selectors: list[str] = []

    def items(self, path: str, **query: str) -> Sequence[Json]:
        assert path == "/apis/resource.k8s.io/v1/resourceslices"
        self.selectors.append(query["fieldSelector"])
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "lab")


@pytest.fixture
def plugin(layout: Layout) -> Path:
    """The log of a plugin of node-1 that runs: this process."""
    process = layout.process("node-1-plugin-01234567")
    process.record.parent.mkdir(parents=True)
    process.record.write_text(Path(f"/proc/{os.getpid()}/stat").read_text())
    process.log.parent.mkdir(parents=True, exist_ok=True)
    process.log.write_text("its last words\n")
    return process.log


@pytest.mark.parametrize(
    ("slices", "complete"),
    [
        ([], False),
        ([published(1, 2)], False),
        ([published(1, 2), published(1, 2)], True),
        ([published(1, 2), published(1, 2), published(2, 2)], False),
        ([published(1, 1), published(2, 2), published(2, 2)], True),
    ],
)
def test_a_pool_is_published_once_all_slices_of_its_newest_generation_are_there(
    slices: list[Json],
    *,
    complete: bool,
) -> None:
    assert is_published(slices) is complete


def test_the_driver_has_started_when_every_node_has_published(layout: Layout, plugin: Path) -> None:
    server = Answers([], [published(1, 1)])

    wait_published(layout, cast("Api", server), [layout.node(1), layout.node(2)])

    assert [selector.rpartition("=")[2] for selector in server.selectors] == ["node-1", "node-1", "node-2"]


def test_gpus_that_are_never_published_are_told_with_the_end_of_the_plugins_log(layout: Layout, plugin: Path) -> None:
    with pytest.raises(LabError, match=r"(?s)GPUs of node-1 are not published after 0 s.*its last words"):
        wait_published(layout, cast("Api", Answers([])), [layout.node(1)], within=0.0)


def test_a_plugin_that_has_ended_is_not_waited_for(layout: Layout, plugin: Path) -> None:
    layout.process("node-1-plugin-01234567").record.write_text("")

    with pytest.raises(LabError, match=r"(?s)plugin of node-1 has ended.*its last words"):
        wait_published(layout, cast("Api", Answers([])), [layout.node(1)])
