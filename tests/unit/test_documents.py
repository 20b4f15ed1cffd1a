"""The documents lead where they say, show every example, and speak of what the code has and says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.reference import devices, pages

from dra_gpu.api import cordon

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dra_gpu"
OPERATIONS = ROOT / "docs" / "operations.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("lab/*.md")])
#: What stands in a text of the code for a value, and in a document for anything.
VALUE = "\0"
ELLIPSIS = "…"


def anchors(document: Path) -> set[str]:
    """The places within a document, as GitHub names them after its headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_to_a_file_and_a_heading(document):
    for link in LINK.findall(document.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = document if not path else document.parent / path

        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_of_the_repository_that_a_document_names_is_there(document):
    for path in re.findall(
        r"`((?:src|tests|docs|deploy|examples|lab|tools|requirements)/[\w./-]+)`", document.read_text()
    ):
        assert (ROOT / path).exists(), path


def test_the_readme_shows_every_example():
    shown = set(re.findall(r"\(examples/([^)]+\.yaml)\)", (ROOT / "README.md").read_text()))

    assert shown == {path.name for path in (ROOT / "examples").iterdir()}


@pytest.mark.parametrize("name", pages.pages())
def test_a_page_of_the_reference_is_current(name):
    assert (pages.DIRECTORY / name).read_text() == pages.pages()[name], "run `make docs`"


def test_the_reference_has_no_other_pages():
    assert {path.name for path in pages.DIRECTORY.iterdir()} == set(pages.pages())


def test_the_reference_explains_no_attribute_and_capacity_that_no_device_has():
    found = [one.wire for view in devices.VIEWS for one in devices.of_view(view)]

    assert {name for one in found for name in one.attributes} == set(devices.ATTRIBUTES)
    assert {name for one in found for name in one.capacity} == set(devices.CAPACITIES)


def texts_of(file: Path) -> Iterator[str]:
    """Every text of a Python file, with what is filled in as `VALUE`."""
    tree = ast.parse(file.read_text())
    parts = {id(part) for one in ast.walk(tree) if isinstance(one, ast.JoinedStr) for part in one.values}
    for one in ast.walk(tree):
        if isinstance(one, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in one.values)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in parts:
            yield one.value


def said() -> list[str]:
    """Every text that the driver, its chart and its policies can say."""
    manifests = [*(ROOT / "deploy").rglob("*.yaml")]
    return [
        *(text for file in sorted(SOURCE.rglob("*.py")) for text in texts_of(file)),
        *(re.sub(r"\s+", " ", file.read_text()) for file in manifests),
    ]


def messages() -> list[str]:
    """The messages that operations.md explains: the first column of its tables of messages."""
    return [
        message
        for table in re.findall(r"^\| Message \|.*\n\|[-|]+\n((?:\|.*\n)+)", OPERATIONS.read_text(), re.MULTILINE)
        for row in table.splitlines()
        for message in re.findall(r"`([^`]+)`", row.split("|")[1])
    ]


def test_the_messages_that_are_explained_are_said():
    texts = said()
    wanted = {
        message: re.compile(".*?".join(re.escape(part) for part in message.split(ELLIPSIS)), re.DOTALL)
        for message in messages()
    }

    assert [message for message, pattern in wanted.items() if not any(map(pattern.search, texts))] == []


def test_no_message_is_explained_twice():
    assert len(messages()) == len(set(messages())) > 50


def test_every_reason_of_an_event_is_explained():
    code = "\n".join(file.read_text() for file in sorted(SOURCE.rglob("*.py")))
    reasons = re.findall(r'(?:tell|on_trouble|Note)\(\s*"([A-Z]\w+)"', code)
    reasons += re.findall(r'"(?:Warning|Normal)",\s*"([A-Z]\w+)"', code)
    reasons += [cordon.RESET_DONE, cordon.RESET_FAILED]
    explained = OPERATIONS.read_text().partition("### Events of a node")[2].partition("\n### ")[0]

    assert len(reasons) > 10
    assert set(reasons) - {"Warning", "Normal"} == set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", explained))
