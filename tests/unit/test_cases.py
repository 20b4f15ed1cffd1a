"""docs/cases.md and the tests speak of the same situations."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_case_a_test_carries_is_listed_and_every_listed_case_has_a_test():
    listed = set(re.findall(r"\bC\d+\b", (ROOT / "docs/cases.md").read_text().split("## Preparing", 1)[1]))
    carried = {
        case
        for path in (ROOT / "tests").rglob("test_*.py")
        for case in re.findall(r'mark\.case\("(C\d+)"\)', path.read_text())
    }

    assert listed == carried
