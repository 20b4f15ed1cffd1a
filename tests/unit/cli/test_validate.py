"""`kubectl gpu validate`: files as kubectl reads them, problems with line, field and remedy, and an exit code."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.cli import manifests
from dra_gpu.cli.main import main

ROOT = Path(__file__).parents[3]

GOOD = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: good}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {deviceClassName: gpu.nvidia.com}
"""
BAD = """\
# two shares where a container can use one
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: bad
  namespace: team
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: shared.gpu.nvidia.com
          capacity:
            requests:
              computePercent: "200"
              memory: 512Mi
"""
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"


def run(*arguments, stdin=None):
    return CliRunner().invoke(main, ["validate", *arguments], input=stdin)


def file(directory, text, name="manifest.yaml"):
    path = directory / name
    path.write_text(text)
    return str(path)


def found(result):
    return json.loads(result.output)["findings"]


def test_a_good_file_is_counted_and_exits_with_0(tmp_path):
    result = run("-f", file(tmp_path, f"{GOOD}---\n{POD}"))

    assert result.exit_code == 0
    assert result.output == "1 document checked, 1 of other kinds skipped: 0 errors, 0 warnings\n"


def test_problems_are_told_with_line_object_field_and_remedy_and_exit_with_1(tmp_path):
    path = file(tmp_path, f"{GOOD}---\n{BAD}")

    result = run("-f", path)

    assert result.exit_code == 1
    field = "spec.spec.devices.requests[0].exactly.capacity.requests"
    assert result.output == (
        f"{path}:25: error: ResourceClaimTemplate team/bad\n"
        f"  {field}['computePercent'] is 200\n"
        "  -> write at most 100\n"
        f"{path}:26: warning: ResourceClaimTemplate team/bad\n"
        f"  {field}['memory'] is 512Mi, of which the scheduler makes 1Gi, the least of a share\n"
        "  -> write 1Gi\n"
        "2 documents checked, 0 of other kinds skipped: 1 error, 1 warning\n"
    )


def test_machines_get_json(tmp_path):
    result = run("-f", file(tmp_path, BAD), "-o", "json")

    document = json.loads(result.output)
    assert (document["checked"], document["skipped"]) == (1, 0)
    assert document["findings"][0]["remedy"] == "write at most 100"
    assert document["findings"][0]["line"] == 16


def test_a_warning_alone_exits_with_0(tmp_path):
    assert run("-f", file(tmp_path, BAD.replace('"200"', '"20"'))).exit_code == 0


def test_standard_input_directories_and_several_files_are_read(tmp_path):
    file(tmp_path, BAD, "a.yaml")
    file(tmp_path, "not: a manifest", "notes.txt")
    (tmp_path / "below").mkdir()
    (tmp_path / "other.json").write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [{"kind": "x"}]}))

    result = run("-f", "-", "-f", str(tmp_path), "-o", "json", stdin=BAD)

    assert [one["file"] for one in found(result)] == ["stdin"] * 2 + [str(tmp_path / "a.yaml")] * 2
    assert json.loads(result.output)["skipped"] == 1


def test_the_items_of_a_list_have_their_own_fields_and_lines(tmp_path):
    indented = "".join(f"  {line}\n" for line in BAD.splitlines()[1:])
    text = "apiVersion: v1\nkind: List\nitems:\n-" + indented[1:]

    (error, _) = found(run("-f", file(tmp_path, text), "-o", "json"))

    assert error["line"] == 18
    assert error["field"].startswith("spec.spec.devices")


def test_a_key_that_stands_twice_is_an_error_as_for_kubectl(tmp_path):
    twice = GOOD.replace("exactly: {deviceClassName: gpu", "exactly: {deviceClassName: a, deviceClassName: gpu")

    (error,) = found(run("-f", file(tmp_path, twice), "-o", "json"))

    assert "'deviceClassName' twice" in error["problem"]
    assert error["line"] == 8


def test_documents_before_a_broken_one_are_checked_and_the_broken_one_is_an_error(tmp_path):
    result = run("-f", file(tmp_path, f"{BAD}---\na: [1\n"), "-o", "json")

    assert result.exit_code == 1
    assert [one["line"] for one in found(result)][:2] == [16, 17]
    assert "is no YAML" in found(result)[2]["problem"]


@pytest.mark.parametrize("missing", ["nothing.yaml", "empty"])
def test_what_is_not_there_is_named(tmp_path, missing):
    (tmp_path / "empty").mkdir()

    result = run("-f", str(tmp_path / missing))

    assert result.exit_code == 1
    assert missing in result.output


def test_every_example_and_class_of_the_repository_is_fine():
    result = run("-f", str(ROOT / "examples"), "-f", str(ROOT / "deploy" / "deviceclasses.yaml"))

    assert result.exit_code == 0, result.output
    assert "0 errors, 0 warnings" in result.output


def values(text):
    return [document.value for document in manifests.parse(text.encode(), "x")]


def test_yaml_is_read_as_kubernetes_reads_it():
    assert values("a: 2001-01-01\n0: x\ntrue: y\nf: .nan\ng: 1.5\n") == [
        {"a": "2001-01-01", "0": "x", "true": "y", "f": ".nan", "g": 1.5}
    ]
    assert values("base: &b {x: 1, y: 2}\nuse: {<<: *b, y: 3}\n")[0]["use"] == {"x": 1, "y": 3}
    assert values("") == values("---\n---\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]\n",
        "[" * 5000,
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)),
        "? [a, b]\n: c\n",
        "a: !!python/object:os.system x\n",
        "a: !!bool x\n",
        "a: !!timestamp x\n",
        "\0",
        "a: 1\n a: 2\n",
    ],
    ids=[
        "recursive",
        "deep",
        "unfolding",
        "list as key",
        "tag",
        "no truth",
        "no time",
        "control character",
        "indented",
    ],
)
def test_a_document_that_cannot_be_taken_is_an_error_and_costs_little(text):
    documents = list(manifests.parse(text.encode(), "x"))

    assert any(document.error for document in documents)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_do_more_than_be_documents_or_errors(content):
    for document in manifests.parse(content, "x"):
        assert document.line("a.b[0].c") >= 1
