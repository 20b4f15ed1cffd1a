"""What documents tell people to type is there: programs, flags, targets, manifests, values.

The tutorials and the operator's commands are run as they stand, on a real Kubernetes, by tests/e2e/test_documents.py;
here is what can be said of every command without one.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import textwrap
from itertools import pairwise

import pytest
import yaml
from click.testing import CliRunner
from lab.__main__ import main as lab

from dra_gpu.__main__ import main as dra_gpu
from dra_gpu.claims.journal import Journal
from dra_gpu.claims.record import DeviceName
from dra_gpu.cli.main import main as kubectl_gpu
from dra_gpu_sim.cli import main as simulator
from tests.console import ROOT, Command, commands

DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("lab/*.md"), *ROOT.glob("deploy/**/*.md")]
)
VALUES = yaml.safe_load((ROOT / "deploy" / "helm" / "dra-driver-gpu" / "values.yaml").read_text())
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
KUBECTL = {
    "apply",
    "cordon",
    "delete",
    "describe",
    "drain",
    "exec",
    "get",
    "label",
    "logs",
    "rollout",
    "uncordon",
    "wait",
}
HELM = {"history", "install", "rollback", "uninstall", "upgrade"}
#: Of the shell and of Debian: nothing of ours is in what they are given.
PLAIN = {"apt-get", "echo", "export", "sed", "."}
#: Stand for what a reader has.
PLACEHOLDERS = {"manifests/", "FILE", "-"}


def programs(command: Command) -> list[list[str]]:
    """The words of each program that a command line runs."""
    lexer = shlex.shlex(command.text.replace("\\\n", " "), posix=True, punctuation_chars="|&")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&"):
            found.append([])
        else:
            found[-1].append(word)
    return [one for one in found if one]


def of_documents(what):
    """Return what a function finds in each document, under names that tell where it stands."""
    return [
        pytest.param(one, id=f"{document.relative_to(ROOT)} {number}")
        for document in DOCUMENTS
        for number, one in enumerate(what(document), 1)
    ]


def typed(document):
    return [words for command in commands(document) for words in programs(command)]


class ParsedError(Exception):
    """A program has understood its arguments; nothing more is wanted of it."""


@pytest.fixture
def understands(monkeypatch):
    """Tells whether a program of ours understands a command line; it is not run."""
    parse = argparse.ArgumentParser.parse_args

    def parse_only(self, *arguments, **named):
        parse(self, *arguments, **named)
        raise ParsedError

    def ask(main, words):
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
        monkeypatch.setattr(sys, "argv", words)
        try:
            main()
        except ParsedError:
            return True
        except SystemExit as ended:
            return ended.code == 0
        return False

    return ask


@pytest.mark.parametrize("words", of_documents(typed))
def test_a_command_is_one_that_there_is(words, understands):
    match words:
        case ["make", *targets]:
            assert {target for target in targets if "=" not in target} <= TARGETS
        case ["kubectl", "gpu", name, *arguments]:
            kubectl_gpu.commands[name].make_context(name, arguments)
        case ["kubectl", verb, *_]:
            assert verb in KUBECTL
        case ["helm", verb, *arguments]:
            assert verb in HELM
            for key in values_set(arguments):
                value_at(key)
        case ["python", "-m", "lab", *arguments]:
            assert understands(lab, ["lab", *arguments])
        case ["dra-gpu-sim", *arguments]:
            assert understands(simulator, ["dra-gpu-sim", *arguments])
        case ["dra-gpu", *_]:
            assert understands(dra_gpu, words)
        case [program, *_]:
            assert program in PLAIN


@pytest.mark.parametrize("words", of_documents(typed))
def test_a_file_that_a_command_takes_is_there(words):
    named = [value for flag, value in pairwise(words) if flag == "-f"]
    named += [word for word in words if word.startswith(("examples/", "deploy/"))]

    for name in set(named) - PLACEHOLDERS:
        assert (ROOT / name).exists(), name


def test_what_any_document_does_with_helm_is_in_operations_whose_commands_are_run():
    run = {command.text for command in commands(ROOT / "docs" / "operations.md")}
    typed = {command.text for document in DOCUMENTS for command in commands(document) if command.words[0] == "helm"}

    assert typed <= run


def values_set(arguments):
    return [
        pair.partition("=")[0] for flag, value in pairwise(arguments) if flag == "--set" for pair in value.split(",")
    ]


def value_at(key):
    found = VALUES
    for name in key.split("."):
        found = found[name]
    return found


def spans(document):
    """What a document has as code within its lines, blocks left out."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_calls_a_target_or_a_value_is_one(document):
    for span in spans(document):
        if found := re.fullmatch(r"make ([a-z0-9 -]+)", span):
            assert set(found[1].split()) <= TARGETS, span
        if found := re.fullmatch(
            r"(?:--set )?((?:webhook|controller|mps|monitoring|deviceClasses|image)\.[\w.]+)[=:]?.*", span
        ):
            value_at(found[1].rstrip("."))


def manifests(document):
    """Return the YAML of a document that is a manifest, or a part of a claim, as whole manifests."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    found = [one for block in blocks for one in yaml.safe_load_all(textwrap.dedent(block))]
    return [whole(one) for one in found if isinstance(one, dict)]


def whole(part):
    """Return a manifest as it is, and a part of one as the claim that it is a part of."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "shared.gpu.nvidia.com"}}
    if "apiVersion" in part:
        return part
    devices = part if part.keys() & {"requests", "config"} else {"requests": [{"name": "gpu", **part}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "of-a-document"},
        "spec": {"devices": {"requests": [request], **devices}},
    }


@pytest.mark.parametrize("manifest", of_documents(manifests))
def test_a_manifest_in_a_document_has_nothing_wrong(manifest):
    checked = CliRunner().invoke(kubectl_gpu, ["validate", "-f", "-"], input=json.dumps(manifest))

    assert checked.exit_code == 0, checked.output
    assert "0 errors, 0 warnings" in checked.output


async def test_the_copy_of_a_journal_is_one_that_the_driver_reads(tmp_path):
    (backup,) = commands(ROOT / "docs" / "operations.md", "Backup")
    code = programs(backup)[0][-1].replace("/var/lib/kubelet/plugins/gpu.nvidia.com", str(tmp_path))
    journal = Journal.open(tmp_path, boot_id="a-boot", release="0.1.0")
    try:
        await journal.remember_names("a-boot", [DeviceName("0000:3b:00.0", "gpu-0", "GPU-a")])
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
    finally:
        await journal.close()

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "journal-copy.db").rename(elsewhere / "journal.db")
    copy = Journal.open(elsewhere, boot_id="a-boot", release="0.1.0")
    try:
        assert copy.recovered is None
        assert await copy.names("a-boot") == {"0000:3b:00.0": "gpu-0"}
    finally:
        await copy.close()
