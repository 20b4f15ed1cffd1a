"""The protocol of a GPU, and what sets a namespace's limits right."""

import pytest

from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps import decisions
from dra_gpu.mps.output import Namespace
from dra_gpu.mps.service import Limits, MpsError, MpsErrorKind
from dra_gpu.mps.state import ShareState
from dra_gpu.vendors.nvidia.compute_mode import ComputeMode, SharingFacts

GPU = "GPU-01234567-89ab-cdef-0123-456789abcdef"
GIB = 1 << 30
TOTAL = 80 * GIB


def namespace(memory: int | None = None, percent: float | None = None, *, low: bool = False) -> Namespace:
    return Namespace("s_a", "gpu", memory, percent, low_priority=low)


def test_the_protocol_is_what_gpu_and_driver_can():
    facts = SharingFacts(ComputeMode.DEFAULT, MpsProtocol.NAMESPACE)

    assert decisions.protocol(GPU, facts) is MpsProtocol.NAMESPACE


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (SharingFacts(ComputeMode.DEFAULT, None), "older than Volta.*TimeSlicing"),
        (SharingFacts(None, None, partitioned=True), "MIG mode.*share its partitions"),
    ],
)
def test_a_gpu_that_mps_cannot_serve_is_refused_with_the_way_out(facts, reason):
    with pytest.raises(MpsError, match=reason) as refused:
        decisions.protocol(GPU, facts)
    assert refused.value.kind is MpsErrorKind.UNSUPPORTED


def test_a_new_namespace_gets_all_its_limits():
    limits = Limits(compute_percent=20, memory_bytes=10 * GIB, low_priority=True)

    assert decisions.settings(limits, None, TOTAL) == (
        "--active-thread-percentage=20",
        "--pinned-memory-limit=10240M",
        "--client-priority=1",
    )


def test_a_share_without_limits_needs_no_command():
    assert decisions.settings(Limits(), None, TOTAL) == ()


def test_a_namespace_as_it_should_be_needs_no_command():
    limits = Limits(compute_percent=20, memory_bytes=10 * GIB + 4711)

    assert decisions.settings(limits, namespace(10 * GIB, 20.0), TOTAL) == ()


def test_only_what_differs_is_set():
    limits = Limits(compute_percent=30, memory_bytes=10 * GIB)

    assert decisions.settings(limits, namespace(10 * GIB, 20.0, low=True), TOTAL) == (
        "--active-thread-percentage=30",
        "--client-priority=0",
    )


def test_a_limit_that_is_taken_away_becomes_the_whole_gpu():
    found = namespace(10 * GIB, 20.0)

    assert decisions.settings(Limits(), found, TOTAL) == (
        "--active-thread-percentage=100",
        "--pinned-memory-limit=81920M",
    )
    assert decisions.settings(Limits(), namespace(TOTAL, 100.0), TOTAL) == ()


def test_leftovers_are_the_namespaces_of_our_server_that_nobody_wants():
    found = [
        Namespace(name, server, None, None, low_priority=False)
        for name, server in (("default", "gpu"), ("s_a", "gpu"), ("s_b", "gpu"), ("s_c", "uid_0"))
    ]

    assert decisions.leftovers(found, "gpu", {"s_a"}) == ("s_b",)


@pytest.mark.parametrize(
    "uuid", ["", "0", "GPU-0", "MIG-0/1/0", "CPU-01234567-89ab-cdef-0123-456789abcdef", f"{GPU}/..", f"{GPU}\n"]
)
def test_what_is_no_uuid_of_a_gpu_is_refused(uuid):
    with pytest.raises(MpsError, match="no UUID of a GPU or partition"):
        decisions.check(uuid)


def test_a_partition_goes_by_the_uuid_of_its_mig_device():
    decisions.check("MIG-01234567-89ab-cdef-0123-456789abcdef")


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "s-a", "a" * 65, "default", "s_a\n"])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(MpsError, match="no name of a share"):
        decisions.check(GPU, name)


@pytest.mark.parametrize("limits", [Limits(compute_percent=0), Limits(compute_percent=101), Limits(memory_bytes=1000)])
def test_limits_out_of_range_are_refused(limits):
    with pytest.raises(MpsError, match="must be"):
        decisions.check(GPU, "s_a", limits)


def test_namespaces_of_a_daemon_that_was_found_are_shares_with_the_limits_they_have():
    found = [
        Namespace("default", "gpu", None, None, low_priority=False),
        Namespace("s_a", "gpu", 10 << 30, 20.0, low_priority=True),
        Namespace("s_b", "gpu", None, None, low_priority=False),
        Namespace("s_c", "other", None, 30.0, low_priority=False),
    ]

    assert decisions.adopted(found, "gpu") == {
        "s_a": ShareState(Limits(20, 10 << 30, low_priority=True)),
        "s_b": ShareState(Limits()),
    }
