"""Manifests as kubectl reads them: files, directories and standard input, YAML and JSON, many documents in each.

As there, a key that stands twice is an error, keys are texts, and dates are texts. A document knows the line of each of
its fields. What a file can ask for is bounded: aliases that unfold without end are refused.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dra_gpu.api.config_error import element, join

_SUFFIXES = (".yaml", ".yml", ".json")
_NAMED_KEY = re.compile(r"\['([A-Za-z_][A-Za-z0-9_]*)'\]")
_MAX_BYTES = 16 * 2**20
_MAX_VALUES = 200_000
_MAX_DEPTH = 200


class ManifestError(Exception):
    """A file cannot be read, or a document of it; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file.

    Attributes:
        source: where it comes from: a path, or `stdin`.
        value: of what JSON has.
        lines: the line of each field, counted from 1, by its path; the object itself has the path ``.
        error: why it cannot be read; then there is no value.
    """

    source: str
    value: Any
    lines: Mapping[str, int] = field(default_factory=dict)
    error: str = ""

    def line(self, path: str) -> int:
        """Return the line of a field, or of the nearest object around it that is there."""
        path = _NAMED_KEY.sub(r".\1", path)
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path, 1)


def read(sources: Iterable[str]) -> Iterator[Document]:
    """Yield every document of files, directories (their .yaml, .yml and .json, not below) and standard input (`-`).

    Raises:
        ManifestError: a file or directory cannot be read.
    """
    for source in sources:
        if source == "-":
            yield from parse(sys.stdin.buffer.read(_MAX_BYTES + 1), "stdin")
            continue
        for path in _files(Path(source)):
            try:
                with path.open("rb") as file:
                    content = file.read(_MAX_BYTES + 1)
            except OSError as error:
                raise ManifestError(f"{path}: {error.strerror or error}") from error
            yield from parse(content, str(path))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    try:
        found = sorted(one for one in path.iterdir() if one.suffix in _SUFFIXES and one.is_file())
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror or error}") from error
    if not found:
        raise ManifestError(f"{path}: there is no file here that ends with {', '.join(_SUFFIXES)}")
    return found


def parse(content: bytes, source: str) -> Iterator[Document]:
    """Yield the documents of one file; the items of a `List` each for itself, empty documents not at all."""
    if len(content) > _MAX_BYTES:
        yield Document(source, None, error=f"has more than {_MAX_BYTES} bytes, which no manifest has")
        return
    loader: yaml.SafeLoader | None = None
    try:
        loader = _Loader(content)
        while loader.check_node():
            node = loader.get_node()
            yield from _documents(node, source) if node is not None else ()
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        text = getattr(error, "problem", None) or str(error).splitlines()[0]
        yield Document(source, None, {"": mark.line + 1 if mark else 1}, f"is no YAML: {text}")
    finally:
        if loader is not None:
            loader.dispose()


def _documents(node: yaml.Node, source: str) -> Iterator[Document]:
    builder = _Builder()
    value = builder.build(node, "", 0)
    if builder.problem:
        yield Document(source, None, {"": builder.problem[0]}, builder.problem[1])
    elif isinstance(value, dict) and isinstance(value.get("items"), list) and str(value.get("kind")).endswith("List"):
        for index, item in enumerate(value["items"]):
            prefix = f"items[{index}]"
            lines = {
                path[len(prefix) :].removeprefix("."): line
                for path, line in builder.lines.items()
                if path == prefix or path.startswith((f"{prefix}.", f"{prefix}["))
            }
            yield Document(source, item, lines)
    elif value is not None:
        yield Document(source, value, builder.lines)


class _Loader(yaml.SafeLoader):
    """YAML without dates."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Builder:
    """Makes a value of a node, noting lines; the first thing that Kubernetes would not take is kept as `problem`."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self.problem: tuple[int, str] | None = None
        self._count = 0
        self._scalars = yaml.constructor.SafeConstructor()

    def build(self, node: yaml.Node, path: str, depth: int) -> Any:
        self._count += 1
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if self._count > _MAX_VALUES or depth > _MAX_DEPTH:
            self._refuse(line, f"unfolds to more than {_MAX_VALUES} values or {_MAX_DEPTH} levels")
        if self.problem:
            return None
        match node:
            case yaml.MappingNode():
                return self._mapping(node, path, depth)
            case yaml.SequenceNode():
                return [self.build(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(node.value)]
            case _:
                return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                sources = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for one in reversed(sources):
                    more = self.build(one, path, depth + 1)
                    merged |= more if isinstance(more, dict) else {}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(line, "has a key that is no text")
                return {}
            key = str(key_node.value)
            if key in own:
                self._refuse(line, f"has the key {key[:80]!r} twice in one object: keep one of them")
            place = join(path, element(key))
            self.lines[place] = line
            own[key] = self.build(value_node, place, depth + 1)
        return merged | own

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            value = self._scalars.construct_object(node)
        except (KeyError, AttributeError):  # what PyYAML makes of a text that does not fit the tag before it
            self._refuse(node.start_mark.line + 1, f"has a text that is no {node.tag[:80]!r}")
            return None
        if value is None or isinstance(value, str | bool | int):
            return value
        if isinstance(value, float) and value == value and abs(value) != float("inf"):  # noqa: PLR0124 - NaN
            return value
        return str(node.value)

    def _refuse(self, line: int, reason: str) -> None:
        if self.problem is None:
            self.problem = (line, reason)
