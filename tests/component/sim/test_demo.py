"""The demonstration as a stranger starts it: what it prints, and what the JSON beside it says."""

import json
import re
import subprocess
import sys

import pytest

WITHIN_SECONDS = 240.0


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What the demonstration printed, and its JSON."""
    output = tmp_path_factory.mktemp("demo") / "demo.json"
    command = [sys.executable, "-m", "dra_gpu_sim.local", "demo", "--output", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_SECONDS, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout, json.loads(output.read_text())


def test_every_job_has_the_limits_it_asked_for(shown):
    text, document = shown

    assert {(job["sms"], job["memory_limit"]) for job in document["jobs"]} == {(26, 10 * 2**30)}
    assert re.findall(r"^train-a +gpu-0-shared +26 SMs +namespace +9\.2 GiB", text, re.MULTILINE)


def test_what_the_words_of_the_table_are_worth_stands_below_it(shown):
    text, _ = shown

    assert (
        "ENFORCED BY  cgroup: the kernel driver limits the pod; namespace: MPS limits each process. "
        "A container can lift neither.\n" in text
    )


def test_a_job_beyond_its_share_is_refused_and_alone_with_it(shown):
    text, document = shown

    assert "train-a allocates 4 GiB more, beyond its 10Gi: CUDA_ERROR_OUT_OF_MEMORY 2; the others go on" in text
    assert document["over_limit"] == "CUDA_ERROR_OUT_OF_MEMORY 2"


def test_the_gpu_is_whole_again_at_the_end(shown):
    text, document = shown

    assert "the GPU is whole again (compute mode Default, 0 limits left)" in text
    assert document["released"] == 0


def test_no_line_is_wider_than_a_terminal_of_140_columns(shown):
    text, _ = shown

    assert [line for line in text.splitlines() if len(line) > 140] == []
