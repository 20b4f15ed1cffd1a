"""The CDI library of containerd and CRI-O, as a small program."""

from pathlib import Path

import pytest

from tests.component.go_programs import go_program


@pytest.fixture(scope="session")
def go_cdi() -> Path:
    """Return the program."""
    return go_program("go-cdi")
