"""What holds for every test: generated examples have no deadline and are the same in each run.

`pytest --hypothesis-profile=search` looks for new ones.
"""

from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("repeatable"), derandomize=False)
settings.load_profile("repeatable")

_ROOT = Path(__file__).parents[1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Divide the work of compiling the tests among the workers of pytest-xdist.

    pytest rewrites the assertions of a test file and keeps the bytecode. Workers collect the same files at the same
    time, and each would rewrite them all; here each begins at another file, and finds done what others began with.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    arguments = [_ROOT / one.partition("::")[0] for one in session.config.args]
    files = sorted(file for one in arguments for file in ([one] if one.is_file() else one.rglob("test_*.py")))
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in (*files[first:], *files[:first]):
        # What is wrong with a file is said by its collection.
        with suppress(Exception):
            import_module(".".join(file.relative_to(_ROOT).with_suffix("").parts))
