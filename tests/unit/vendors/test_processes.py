"""Processes of pods, by a procfs."""

from dra_gpu.vendors.processes import command, environments

POD, OTHER = "5a5a5a5a-0000-4000-8000-0000000000aa", "5a5a5a5a-0000-4000-8000-0000000000bb"


def put(proc, pid, pod, environment=b"A=1\0B=x=y\0", line=b"python\0train.py\0"):
    directory = proc / str(pid)
    directory.mkdir()
    (directory / "cgroup").write_text(f"0::/kubepods/besteffort/pod{pod}/container\n")
    (directory / "environ").write_bytes(environment)
    (directory / "cmdline").write_bytes(line)
    (directory / "comm").write_text("python\n")


def test_the_environments_of_some_pods_processes_are_read_and_no_others(tmp_path):
    put(tmp_path, 11, POD)
    put(tmp_path, 12, OTHER)
    (tmp_path / "self").mkdir()

    assert environments(tmp_path, {POD}) == {11: {"A": "1", "B": "x=y"}}


def test_a_process_that_ends_meanwhile_is_left_out(tmp_path):
    put(tmp_path, 11, POD)
    (tmp_path / "11" / "environ").unlink()

    assert environments(tmp_path, {POD}) == {}
    assert environments(tmp_path / "none", {POD}) == {}


def test_a_command_is_told_shortened_and_readable(tmp_path):
    put(tmp_path, 11, POD, line=b"python\0\x1b[31m" + b"x" * 200)
    put(tmp_path, 12, POD, line=b"")

    assert command(tmp_path, 11) == ("python [31m" + "x" * 200)[:80]
    assert command(tmp_path, 12) == "python"
    assert command(tmp_path, 13) == ""
