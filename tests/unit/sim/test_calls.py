"""Reading the log of calls."""

from dra_gpu_sim.calls import Call, read_calls

LOG = (
    "12.000000001\t7\tnvmlInit_v2\t-\t0\t\n"
    "12.000000002\t7\tnvmlDeviceSetComputeMode\t3\t4\tmode=3\n"
    "12.000000003\t8\tnvidia-smi compute-policy\t1\t0\ttime_slice=2\n"
    "12.00000"
)


def test_a_line_becomes_a_call_and_a_line_cut_short_by_a_kill_is_left_out(tmp_path):
    (tmp_path / "calls.log").write_text(LOG)
    calls = read_calls(tmp_path / "calls.log")
    assert calls[1] == Call(12.000000002, 7, "nvmlDeviceSetComputeMode", 3, 4, "mode=3")
    assert len(calls) == 3


def test_calls_are_picked_by_name_pattern_gpu_and_pid(tmp_path):
    (tmp_path / "calls.log").write_text(LOG)
    path = tmp_path / "calls.log"
    assert [call.gpu for call in read_calls(path, name="nvidia-smi *")] == [1]
    assert [call.name for call in read_calls(path, gpu=3)] == ["nvmlDeviceSetComputeMode"]
    assert len(read_calls(path, pid=7)) == 2
