"""How the commands of documents are compared with what they print: only what differs from run to run may differ."""

import pytest

from tests.console import ROOT, Command, commands


def test_a_command_has_the_lines_below_it_and_goes_on_after_a_backslash(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n## One\n\n```console\n$ a \\\n  b\nc\n\nd\n$ e\n```\n\n## Two\n\n```console\n$ f # why\n```\n"
    )

    assert commands(page) == [Command("a \\\n  b", ("c", "", "d")), Command("e"), Command("f # why")]
    assert commands(page, "Two") == [Command("f # why")]
    assert commands(page)[2].words == ["f"]


@pytest.mark.parametrize(
    ("shown", "output"),
    [
        ("", "whatever\n"),
        ("pod/a created", "pod/a created\n"),
        ("a  b   c", "a b     c \n"),
        ("used=… sms=26", "used=12 free=3 sms=26\n"),
        ("first\n…\nlast", "first\nlast\n"),
        ("first\n…\nlast", "first\n2\n3\nlast\n"),
        (
            "GPU 0 (UUID: GPU-d482f7cd-00ff-48b4-b8d6-c47ab6c05c59)",
            "GPU 0 (UUID: GPU-07591b04-cada-4df1-851d-0d0f01cefdb7)\n",
        ),
        ("four-jobs-0-x7rjz-gpu-lxwml", "four-jobs-0-4md85-gpu-lt847\n"),
        ("memory: cooperative", "memory: cgroup\n"),
        ("node-1  gpu-0  0", "node-1  gpu-3  0\n"),
    ],
)
def test_what_differs_from_run_to_run_may_differ(shown, output):
    assert Command("a", tuple(shown.splitlines())).prints(output)


@pytest.mark.parametrize(
    ("shown", "output"),
    [
        ("sms=26", "sms=132\n"),
        ("pod/a created", "pod/a created\nmore\n"),
        ("pod/a created", ""),
        ("memory: cgroup", "memory: accounting\n"),
        ("GPU 0 (UUID: GPU-d482f7cd-00ff-48b4-b8d6-c47ab6c05c59)", "GPU 0 (UUID: )\n"),
        ("first\n…\nlast", "first\nlast\nmore\n"),
        ("a.c", "abc\n"),
    ],
)
def test_everything_else_may_not(shown, output):
    assert not Command("a", tuple(shown.splitlines())).prints(output)


def test_the_tutorials_show_what_each_of_their_looks_prints():
    found = [one for page in (ROOT / "docs" / "tutorials").glob("*.md") for one in commands(page)]
    looks = [one for one in found if one.words[1] in ("logs", "gpu", "get", "exec")]

    assert len(looks) >= 12
    assert all(one.shown for one in looks)
