"""Answers fit into a screen, a header and a terminal, whatever the object holds."""

from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.validation.problem import Problem, warning
from dra_gpu.webhook import answers
from tests.unit.validation.manifests import claim, config, request
from tests.unit.webhook.questions import answer, question

CONTROL = {chr(number) for number in (*range(32), *range(127, 160))}
ASKED = question(claim(request())).request


def test_warnings_are_few_and_short_and_the_last_one_says_how_many_there_are():
    found = [warning(f"field{number}", "x" * 1000, "y") for number in range(50)]

    said = answers.of_problems(ASKED, found).warnings

    assert len(said) == answers.MOST_WARNINGS + 1
    assert said[-1] == "and 38 more: see them all with: kubectl gpu validate -f FILE"
    assert max(map(len, said)) <= 256
    assert sum(map(len, said)) <= 4096


def test_errors_have_an_end_too():
    said = answers.of_problems(ASKED, [Problem(f"f{number}", "x" * 100_000, "y") for number in range(1000)])

    assert not said.allowed
    assert len(said.status.message) < 17_000
    assert said.status.message.endswith("and 936 more: see them all with: kubectl gpu validate -f FILE")
    assert len(said.status.details.causes) == 65


def test_whoever_is_denied_gets_the_warnings_as_well():
    said = answers.of_problems(ASKED, [Problem("a", "is wrong", "mend it"), warning("b", "is odd", "look")])

    assert (said.status.message, said.warnings) == ("a is wrong: mend it", ["b is odd: look"])


@given(st.text())
def test_no_text_from_an_object_reaches_a_terminal_with_control_characters(text):
    said = answer(claim(request(), configs=[config(**{text: 1})]))

    assert not said.allowed
    shown = [said.status.message, *(cause.message + cause.field for cause in said.status.details.causes)]
    assert not set("".join(shown)) & CONTROL


def test_control_characters_become_visible():
    assert answers.clean("a\x1b[31mb\r\nc\u202ed", 100) == "a�[31mb��c�d"
    assert answers.clean("Größe", 100) == "Größe"
    assert answers.clean("x" * 300, 256) == "x" * 255 + "…"
