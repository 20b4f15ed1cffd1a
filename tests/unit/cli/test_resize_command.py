"""`kubectl gpu resize` as a command: what its options become, and what it does not take."""

import pytest
from click.testing import CliRunner

from dra_gpu.cli import resize_command
from dra_gpu.cli.main import main
from dra_gpu.cli.resize import Order


@pytest.fixture
def orders(monkeypatch):
    """What would be done."""
    made = []
    monkeypatch.setattr(resize_command, "_run", lambda order, wait, *_: made.append((order, wait)))
    return made


def resize(*arguments):
    return CliRunner().invoke(main, ["resize", *arguments])


def test_options_become_fields_of_a_spec(orders):
    result = resize(
        "training",
        "-n",
        "team-a",
        "--request",
        "main",
        "--compute",
        "40%",
        "--memory",
        "20Gi",
        "--clients",
        "4",
        "--wait",
    )

    assert result.exit_code == 0
    capacity = {"computePercent": 40, "memory": "20Gi", "clients": 4}
    assert orders == [(Order("team-a", "training", "main", {"capacity": capacity}), 300.0)]


def test_settings_of_a_whole_gpu_have_options_too(orders):
    resize("training", "--time-slice", "Long")
    resize("training", "--mps-threads", "50", "--mps-memory", "10Gi", "--wait=5")

    assert [order.changes for order, _ in orders] == [
        {"timeSlice": "Long"},
        {"mps": {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": "10Gi"}},
    ]
    assert [wait for _, wait in orders] == [None, 5.0]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["training"], "say what is wanted"),
        (["training", "--reset", "--memory", "1Gi"], "say what is wanted"),
        (["training", "--compute", "0"], "'0' is no whole percentage from 1 to 100"),
        (["training", "--compute", "half"], "'half' is no whole percentage"),
        (["training", "--compute", "9" * 5000], "is no whole percentage"),
        (["training", "--mps-threads", "101%"], "--mps-threads"),
        (["training", "--reset", "-o", "json"], "leaves nothing to print"),
    ],
)
def test_what_means_nothing_is_refused_before_anything_is_asked(orders, arguments, problem):
    result = resize(*arguments)

    assert (result.exit_code, orders) == (2, [])
    assert problem in result.stderr
