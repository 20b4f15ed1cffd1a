import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.inventory import versions

SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
    r"(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)


@pytest.mark.case("C52")
@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("580.65.06", "580.65.6"),
        ("6.19.14.31400000", "6.19.14"),
        ("560", "560.0.0"),
        ("535.288.01-rc1+x", "535.288.1-rc1+x"),
        ("580.65.06.1", "580.65.6"),
        ("615.71", "615.71.0"),
        ("", None),
        ("unknown", None),
        ("1.2.3-01", "1.2.3-1"),
        ("9" * 70, None),
    ],
)
def test_a_driver_version_becomes_the_semver_that_the_rule_says(raw, expected):
    assert versions.semver(raw) == expected


@given(st.text(alphabet="0123456789.-+vabcZ ", max_size=40))
def test_whatever_a_driver_calls_itself_the_result_is_a_semver_or_nothing(raw):
    version = versions.semver(raw)

    assert version is None or SEMVER.fullmatch(version)
