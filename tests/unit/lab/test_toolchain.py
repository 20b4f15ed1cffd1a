"""What is said to somebody whose Go cannot build the lab, before minutes have passed."""

from pathlib import Path

import pytest
from lab.errors import LabError
from lab.toolchain import require_go, too_old


def fake_go(directory: Path, script: str) -> dict[str, str]:
    """An environment in which `go` is a shell script."""
    program = directory / "go"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


def test_a_machine_without_go_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"go is not on the PATH: install Go 1\.26"):
        require_go({"PATH": str(tmp_path)})


@pytest.mark.parametrize("version", ["go1.19.8", "go1.20"])
def test_a_go_that_cannot_fetch_a_newer_one_is_too_old(tmp_path: Path, version: str) -> None:
    with pytest.raises(LabError, match=f"{version} is too old: install"):
        require_go(fake_go(tmp_path, f"echo {version}"))


def test_the_words_of_a_go_that_may_not_fetch_a_newer_one_are_passed_on(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"requires go >= 1\.26.*install Go"):
        require_go(fake_go(tmp_path, "echo 'go.mod requires go >= 1.26 (GOTOOLCHAIN=local)' >&2; exit 1"))


@pytest.mark.parametrize("version", ["go1.21.0", "go1.26.1", "go2.0", "devel +abc"])
def test_a_go_that_is_new_enough_or_built_from_its_sources_is_not_too_old(version: str) -> None:
    assert not too_old(version)
