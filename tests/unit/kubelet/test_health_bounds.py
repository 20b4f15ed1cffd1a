from dra_gpu.kubelet.health import MAX_DEVICES, MAX_MESSAGE, DeviceHealth, HealthStatus, _response_v1, bounded

GRPC_GO_TAKES = 4 * 1024 * 1024
LONGEST_NAME = "n" * 63


def device(number, message=""):
    return DeviceHealth(LONGEST_NAME, f"gpu-{number}", HealthStatus.UNHEALTHY, message)


def test_a_message_longer_than_the_kubelet_keeps_is_cut_and_says_so():
    [cut] = bounded([device(0, "x" * (MAX_MESSAGE + 1))])

    assert len(cut.message) == MAX_MESSAGE
    assert cut.message.endswith("x…")


def test_a_message_of_just_the_length_stays_whole():
    [whole] = bounded([device(0, "x" * MAX_MESSAGE)])

    assert whole.message == "x" * MAX_MESSAGE


def test_of_more_devices_than_the_kubelet_takes_the_first_are_told():
    told = bounded([device(number) for number in range(MAX_DEVICES + 5)])

    assert [one.device for one in told] == [f"gpu-{number}" for number in range(MAX_DEVICES)]


def test_the_most_that_can_be_told_fits_into_one_message_of_grpc():
    told = bounded([device(number, "x" * 5000) for number in range(MAX_DEVICES)])

    assert len(_response_v1(told, 2**40).SerializeToString()) < GRPC_GO_TAKES
