"""Who leaves a node removes nothing from under an instance that still ends."""

import pytest

from dra_gpu.node.presence import Presence, somebody_present


@pytest.fixture
def state(tmp_path):
    (tmp_path / "locks").mkdir()
    return tmp_path


def test_a_directory_that_nobody_has_is_free(state):
    assert not somebody_present(state)


def test_as_long_as_one_of_several_instances_lives_somebody_is_there(state):
    first, second = Presence(state), Presence(state)

    first.close()
    before = somebody_present(state)
    second.close()

    assert before
    assert not somebody_present(state)


def test_asking_keeps_no_instance_from_coming(state):
    somebody_present(state)

    instance = Presence(state)

    assert somebody_present(state)
    instance.close()
