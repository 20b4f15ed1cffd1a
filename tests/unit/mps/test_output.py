"""What nvidia-cuda-mps-control prints."""

import pytest

from dra_gpu.mps import output
from dra_gpu.mps.output import Client, Namespace


def test_a_namespace_with_limits_and_one_without():
    text = "s_a,gpu,Ready,20G,30.00,1,/run/x/pipe/gpu/s_a\ns_b,gpu,Stopped,-,-,-,/run/x/pipe/gpu/s_b\n"

    assert output.namespaces(text) == (
        Namespace("s_a", "gpu", 20 << 30, 30.0, low_priority=True),
        Namespace("s_b", "gpu", None, None, low_priority=False),
    )


def test_a_command_with_commas_and_newline_at_the_end():
    text = "51023,gpu,0,s_a,python train.py --gpus 0,1\n"

    assert output.clients(text) == (Client(51023, "gpu", "s_a"),)


def test_a_client_on_two_devices_is_one():
    assert len(output.clients("7,gpu,0,s_a,a\n7,gpu,1,s_a,a\n")) == 1


def test_a_server_that_does_not_run_has_no_pid():
    text = "gpu,0,48201,Ready,/p,GPU-a,-\nuid_1000,1000,0,Stopped,/p,-,-\nother,0,-,Stopped,/p,-,-\n"

    assert output.servers(text) == {"gpu": 48201, "uid_1000": None, "other": None}


def test_pids_a_line_each():
    assert output.pids("12\n\n 13 \n") == (12, 13)
    assert output.pids("") == ()


@pytest.mark.parametrize(
    ("text", "size"),
    [("20G", 20 << 30), ("10240M", 10 << 30), ("512MB", 512 << 20), ("64K", 64 << 10), ("7", 7), ("1 GiB", 1 << 30)],
)
def test_sizes_are_binary(text, size):
    assert output.size(text) == size


@pytest.mark.parametrize("text", ["all", "1.5G", "-1G", "G", ""])
def test_what_is_no_size_is_said(text):
    with pytest.raises(ValueError, match="is no size"):
        output.size(text)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (output.namespaces, "NAME SERVER SERVER STATUS"),
        (output.clients, "316...,gpu,0,s_a,python"),
        (output.clients, "1,gpu"),
        (output.pids, "MPS control daemon"),
        (output.servers, "gpu"),
    ],
)
def test_another_form_is_an_error_and_no_guess(read, text):
    with pytest.raises(ValueError, match=r"fields|invalid literal"):
        read(text)
