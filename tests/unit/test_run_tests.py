"""The second attempt that `make test` gives a failed test: alone, once, and for few."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / "tools/run_tests.sh"
_RACY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_racy(number):
    seen = Path(f"seen-{{number}}")
    if not seen.exists():
        seen.touch()
        raise AssertionError("lost the race")
"""


def run(directory: Path, *, tests: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a directory of its own."""
    (directory / "test_it.py").write_text(tests)
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "pytest").write_text(f'#!/bin/sh\nexec {sys.executable} -m pytest "$@"\n')
    (directory / "pytest").chmod(0o755)
    # Plugins would take longer to import than these tests take.
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [_SCRIPT, "./pytest", "-q"], cwd=directory, env=environment, text=True, capture_output=True, check=False
    )


def test_a_test_that_passes_alone_is_named_as_racy_and_lets_the_run_pass(tmp_path):
    ended = run(tmp_path, tests=_RACY.format(count=1))

    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.endswith("passed alone:\ntests:   test_it.py::test_racy[0]\n")


def test_a_test_that_fails_twice_fails_the_run(tmp_path):
    ended = run(tmp_path, tests="def test_broken():\n    assert False\n")

    assert ended.returncode == 1
    assert ended.stdout.endswith("tests: failed twice\n")


def test_more_than_three_failures_are_not_tried_again(tmp_path):
    ended = run(tmp_path, tests=_RACY.format(count=4))

    assert ended.returncode == 1
    assert ended.stdout.endswith("tests: 4 failed; more than 3 are not tried again\n")


@pytest.mark.parametrize("tests", ["import no_such_module\n", "def test_nothing(missing_fixture:\n"])
def test_a_file_that_cannot_be_collected_fails_the_run_at_once(tmp_path, tests):
    ended = run(tmp_path, tests=tests)

    assert ended.returncode == 2
    assert "once more" not in ended.stdout


def test_without_a_failure_nothing_is_added(tmp_path):
    ended = run(tmp_path, tests="def test_good():\n    pass\n")

    assert ended.returncode == 0
    assert "tests:" not in ended.stdout
