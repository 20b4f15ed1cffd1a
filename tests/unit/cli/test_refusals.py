"""What a person is told when the API server refuses."""

import pytest

from dra_gpu.apiserver import errors
from dra_gpu.cli import refusals


@pytest.mark.parametrize(
    "kind", [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.ApiError)]
)
def test_nobody_at_a_shell_is_told_of_service_accounts_or_of_what_is_done_by_itself(kind):
    text = refusals.told(kind("get", "nodes", "node-a", status=400, detail="because"))

    assert text.startswith("cannot get nodes node-a: 400: because; ")
    assert "ServiceAccount" not in text
    assert "by itself" not in text


def test_who_lacks_a_right_is_told_which_and_whom_to_ask():
    error = errors.ForbiddenError("patch", "nodes", "node-a", status=403, detail='User "eve" cannot patch nodes')

    assert refusals.told(error) == (
        'cannot patch nodes node-a: 403: User "eve" cannot patch nodes; ask who administers the cluster for this right'
    )


def test_other_errors_speak_for_themselves():
    assert refusals.told(ValueError("no such thing")) == "no such thing"
