"""When the driver may count on the kubelet sending pods here."""

import asyncio
from pathlib import Path

import pytest

from dra_gpu.kubelet import registration
from dra_gpu.kubelet.registration import RegistrationReport, RegistrationState, refusal

KUBELET = 100
NEXT_KUBELET = 200
PROBE = 300


@pytest.fixture(autouse=True)
def short_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "RECONNECT_SECONDS", 0.01)


class Reports:
    """Collects reports and lets a test wait for the next one."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[RegistrationReport] = asyncio.Queue()

    def __call__(self, report: RegistrationReport) -> None:
        self.queue.put_nowait(report)

    async def next(self) -> RegistrationReport:
        async with asyncio.timeout(30):
            return await self.queue.get()


def registered_state(reports: Reports) -> RegistrationState:
    state = RegistrationState("gpu.nvidia.com", reports)
    state.notified("", registered=True, pid=KUBELET)
    state.connected(KUBELET)
    return state


async def test_it_is_registered_once_the_kubelet_says_so():
    reports = Reports()
    state = RegistrationState("gpu.nvidia.com", reports)

    assert not state.registered.is_set()
    state.notified("", registered=True, pid=KUBELET)

    assert state.registered.is_set()
    assert await reports.next() == RegistrationReport(registered=True)


@pytest.mark.case("C145")
async def test_a_registration_socket_that_no_kubelet_takes_is_told_with_its_directory_and_the_value_to_look_at(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(registration, "SILENCE_SECONDS", 0.01)
    reports = Reports()
    state = RegistrationState("gpu.nvidia.com", reports)

    state.expect(Path("/var/lib/kubelet/plugins_registry"))

    report = await reports.next()
    assert not report.registered
    assert "no kubelet took the registration socket in /var/lib/kubelet/plugins_registry" in report.message
    assert "kubeletRoot" in report.message
    state.notified("", registered=True, pid=KUBELET)  # it started late
    assert (await reports.next()).registered


async def test_a_kubelet_that_came_in_time_is_not_missed(monkeypatch: pytest.MonkeyPatch):
    reports = Reports()
    state = RegistrationState("gpu.nvidia.com", reports)
    state.expect(Path("/registry"))

    state.notified("", registered=True, pid=KUBELET)

    assert state._silence is None
    assert (await reports.next()).registered
    assert reports.queue.empty()


async def test_a_refusal_is_reported_each_time_with_reason_and_remedy():
    reports = Reports()
    state = RegistrationState("gpu.nvidia.com", reports)

    state.notified("endpoint /x already registered for DRA driver", registered=False, pid=KUBELET)
    state.notified("endpoint /x already registered for DRA driver", registered=False, pid=KUBELET)

    first, second = await reports.next(), await reports.next()
    assert first == second
    assert "endpoint /x already registered" in first.message
    assert "give each instance its pod UID" in first.message


async def test_when_the_kubelet_stays_away_it_is_no_longer_registered():
    reports = Reports()
    state = registered_state(reports)
    await reports.next()

    state.disconnected(KUBELET)

    assert not (await reports.next()).registered
    assert not state.registered.is_set()


async def test_a_kubelet_that_dials_again_at_once_was_only_idle():
    reports = Reports()
    state = registered_state(reports)
    await reports.next()

    state.disconnected(KUBELET)
    state.connected(KUBELET)
    await asyncio.sleep(0.03)  # longer than the absence that would count

    assert state.registered.is_set()
    assert reports.queue.empty()


async def test_a_kubelet_that_dials_again_late_still_knows_the_driver():
    reports = Reports()
    state = registered_state(reports)
    await reports.next()
    state.disconnected(KUBELET)
    await reports.next()

    state.connected(KUBELET)

    assert state.registered.is_set()


async def test_a_new_kubelet_that_connected_before_it_notified_is_watched_too():
    reports = Reports()
    state = registered_state(reports)
    await reports.next()
    state.disconnected(KUBELET)
    await reports.next()

    state.connected(NEXT_KUBELET)
    assert not state.registered.is_set()
    state.notified("", registered=True, pid=NEXT_KUBELET)
    assert (await reports.next()).registered
    assert state.kubelet_connections == 1

    state.disconnected(NEXT_KUBELET)
    assert not (await reports.next()).registered


async def test_a_probe_that_comes_and_goes_changes_nothing():
    reports = Reports()
    state = registered_state(reports)
    await reports.next()

    state.connected(PROBE)
    state.disconnected(PROBE)
    await asyncio.sleep(0.03)  # longer than the absence that would count

    assert state.registered.is_set()
    assert state.kubelet_connections == 1


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("none of services supported by the plugin are supported by the kubelet", "upgrade the kubelet"),
        ("no handler registered for plugin type: DRAPlugin", "switch on dynamic resource allocation"),
        ("", "see the kubelet's log"),
    ],
)
def test_each_refusal_says_what_to_do(error: str, remedy: str):
    assert remedy in refusal("gpu.nvidia.com", error)
