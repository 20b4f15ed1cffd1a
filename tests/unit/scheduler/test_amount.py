"""Quantities are written as Kubernetes writes them."""

import itertools

import pytest

from dra_gpu.scheduler.amount import Amount
from dra_gpu.scheduler.semver import InvalidVersionError, Version


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1024Mi", "1Gi"),
        ("1500Mi", "1500Mi"),
        ("0.5Gi", "512Mi"),
        ("0.5Ki", "512"),
        ("1000", "1k"),
        ("0.5", "500m"),
        ("12300m", "12300m"),
        ("8e9", "8e9"),
        ("8000e6", "8e9"),
        ("1e-3", "1e-3"),
        ("0", "0"),
        ("0Gi", "0"),
        ("-2Gi", "-2Gi"),
        ("1E", "1E"),
        ("450G", "450G"),
    ],
)
def test_a_quantity_is_written_with_the_largest_unit_that_leaves_it_whole(text, canonical):
    assert str(Amount.parse(text)) == canonical


def test_versions_compare_by_precedence():
    ascending = ["1.0.0-1", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-rc.2", "1.0.0-rc.10", "1.0.0", "1.2.0", "1.10.0"]
    versions = [Version.parse(text) for text in ascending]
    assert [one.compare(other) for one, other in itertools.pairwise(versions)] == [-1] * 7
    assert Version.parse("1.0.0+build").compare(Version.parse("1.0.0")) == 0


@pytest.mark.parametrize(("text", "version"), [("v1.2", "1.2.0"), ("01.02.03", "1.2.3"), ("0", "0.0.0")])
def test_a_version_in_its_usual_spelling_can_be_normalized(text, version):
    assert str(Version.normalized(text)) == version


@pytest.mark.parametrize("text", ["1.2", "01.2.3", "1.2.3-", "", "a.b.c", "1.2.3-01"])
def test_what_is_no_version_is_refused(text):
    with pytest.raises(InvalidVersionError):
        Version.parse(text)


def test_a_short_version_with_a_pre_release_is_refused():
    with pytest.raises(InvalidVersionError):
        Version.normalized("1.2-rc1")
