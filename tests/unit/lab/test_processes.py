"""Records of processes: exactly the process that was started is stopped."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.api import wait_until
from lab.errors import LabError
from lab.processes import Identity, Process, parse_stat


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    one = Process("sleeper", tmp_path / "pids" / "sleeper", tmp_path / "logs" / "sleeper.log")
    yield one
    one.stop(signal.SIGKILL)


def test_a_stat_line_is_read_whatever_the_programs_name() -> None:
    line = "4711 (a (bad) name) S " + " ".join(str(field) for field in range(4, 53))

    assert parse_stat(line) == Identity(pid=4711, started=22)


def test_a_started_process_is_the_program_itself_and_recorded(process: Process) -> None:
    identity = process.start(["sleep", "60"])

    assert process.running() == identity
    assert Path(f"/proc/{identity.pid}/comm").read_text() in {"sleep\n", "sh\n"}


def test_another_object_on_the_same_record_stops_it(process: Process) -> None:
    process.start(["sleep", "60"])

    assert Process("again", process.record, process.log).stop(signal.SIGTERM, seconds=30.0)
    assert process.running() is None


def test_a_process_that_ignores_the_signal_is_killed_after_the_grace_time(process: Process) -> None:
    process.start(["sh", "-c", "trap '' TERM; echo ignoring; while :; do sleep 0.05; done"])
    wait_until("the trap is set", lambda: "ignoring" in process.log.read_text(), 30.0, every=0.01)

    assert not process.stop(signal.SIGTERM, seconds=0.2)
    assert process.running() is None


def test_a_pid_that_now_belongs_to_somebody_else_is_left_alone(process: Process) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            stat = Path(f"/proc/{stranger.pid}/stat").read_text().split()
            stat[21] = str(int(stat[21]) - 1)
            process.record.parent.mkdir(parents=True)
            process.record.write_text(" ".join(stat))

            assert process.stop(signal.SIGKILL)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_stopping_what_never_ran_or_ended_by_itself_succeeds(process: Process) -> None:
    assert process.stop()
    process.start(["true"])
    assert process.signal_and_wait(signal.SIGTERM, 30.0)


def test_a_cgroup_that_cannot_be_entered_is_an_error_with_the_log(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.processes._STARTED_WITHIN_SECONDS", 0.5)

    with pytest.raises(LabError, match="sleeper did not start"):
        process.start(["sleep", "60"], procs_file=tmp_path / "no" / "cgroup.procs")
