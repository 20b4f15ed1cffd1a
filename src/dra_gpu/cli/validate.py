"""`kubectl gpu validate`: what is wrong with manifests, before anything is sent to a cluster."""

from collections.abc import Iterable

import msgspec

from dra_gpu.cli.manifests import Document
from dra_gpu.validation import manifest
from dra_gpu.validation.problem import Severity


class Finding(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """One problem, and where it is.

    Attributes:
        file: path, or `stdin`.
        line: counted from 1.
        object: `Kind namespace/name`; empty where the document cannot be read.
        severity: `error` or `warning`.
        field: path of the field.
        problem: what is wrong with it.
        remedy: what to write instead.
    """

    file: str
    line: int
    object: str
    severity: str
    field: str
    problem: str
    remedy: str


class Summary(msgspec.Struct, rename="camel", frozen=True):
    """All findings, and what was looked at.

    Attributes:
        findings: in the order of the documents.
        checked: number of documents with something to check.
        skipped: number of documents of kinds that say nothing to this driver.
    """

    findings: tuple[Finding, ...]
    checked: int
    skipped: int

    @property
    def errors(self) -> int:
        """How many findings keep something from working."""
        return sum(one.severity == Severity.ERROR.value for one in self.findings)


def check(documents: Iterable[Document]) -> Summary:
    """Return what is wrong with documents."""
    findings: list[Finding] = []
    checked = skipped = 0
    for document in documents:
        if document.error:
            checked += 1
            severity = Severity.ERROR.value
            findings.append(
                Finding(document.source, document.line(""), "", severity, "", document.error, "correct the file")
            )
            continue
        report = manifest.check(document.value)
        if report is None:
            skipped += 1
            continue
        checked += 1
        findings += [
            Finding(
                file=document.source,
                line=document.line(problem.field),
                object=f"{report.kind} {report.name}".strip(),
                severity=problem.severity.value,
                field=problem.field,
                problem=problem.reason,
                remedy=problem.remedy,
            )
            for problem in report.problems
        ]
    return Summary(tuple(findings), checked, skipped)


def as_table(summary: Summary) -> str:
    """Return the findings for people: three lines each, since fields and remedies are long."""
    lines = []
    for one in summary.findings:
        lines.append(f"{one.file}:{one.line}: {one.severity}: {one.object}".rstrip(": "))
        lines.append(f"  {one.field or 'the document'} {one.problem}")
        lines.append(f"  -> {one.remedy}")
    warnings = len(summary.findings) - summary.errors
    lines.append(
        f"{_many(summary.checked, 'document')} checked, {summary.skipped} of other kinds skipped: "
        f"{_many(summary.errors, 'error')}, {_many(warnings, 'warning')}"
    )
    return "\n".join(lines)


def as_json(summary: Summary) -> str:
    """Return the findings for machines."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=2).decode()


def _many(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
