"""The documents lead where they say, and the README shows every example."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("lab/*.md")])


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


def test_the_readme_shows_every_example():
    shown = set(re.findall(r"\(examples/([^)]+\.yaml)\)", (ROOT / "README.md").read_text()))

    assert shown == {path.name for path in (ROOT / "examples").iterdir()}
