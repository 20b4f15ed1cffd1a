"""From the bytes of a request to the object that is to be judged. Pure.

The API server passes on what Go's decoder takes and ours does not: texts that are no Unicode, and values nested
thousands of levels deep, inside the configs of any driver. They must not keep the claims of other drivers out of the
cluster, so what cannot be read is replaced and told; only objects of ours are refused for it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dra_gpu.api import opaque, strict
from dra_gpu.api.admission_v1 import API_VERSION, AdmissionQuestion, AdmissionRequest
from dra_gpu.api.config_error import InvalidConfigError
from dra_gpu.validation.problem import Problem, under

# Values make objects twenty times as large as their text: four million bytes of `[],` take a hundred megabytes. A claim
# whose 32 configs are full of them has a hundred thousand. Counted are the characters that begin or part values.
_MOST_VALUES = 200_000
_DEEPEST = 200  # levels; nothing that means something to this driver has more than 20
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)")
_REPLACED = f"has a text that is no Unicode (half a surrogate pair), or values nested more than {_DEEPEST} levels deep"
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_LONE = 6  # characters of one escape


class UnreadableReviewError(ValueError):
    """What came is no AdmissionReview v1. The message says why."""


@dataclass(frozen=True, slots=True)
class Question:
    """An AdmissionReview that could be read.

    Attributes:
        request: as the API server sent it.
        document: the object, by the kind that the API server gave it; None for what is no object.
        old: the same of the object before an update.
        unreadable: what had to be replaced so that the rest could be read; empty as a rule.
    """

    request: AdmissionRequest
    document: Mapping[str, Any] | None
    old: Mapping[str, Any] | None
    unreadable: str = ""


def read(body: bytes) -> Question:
    """Return the question of an AdmissionReview v1.

    Raises:
        UnreadableReviewError: it is none, or has more values than any object of Kubernetes.
    """
    if sum(body.count(one) for one in (b",", b"[", b"{")) > _MOST_VALUES:
        raise UnreadableReviewError(f"the body has more than {_MOST_VALUES} values")
    try:
        return _question(body)
    except msgspec.ValidationError as error:
        raise UnreadableReviewError(f"the body is no AdmissionReview: {error}") from error
    except _UNREADABLE:
        pass
    try:
        return _question(_without_depths(_whole_texts(body)), _REPLACED)
    except _UNREADABLE as error:
        raise UnreadableReviewError(f"the body is no AdmissionReview: {error}") from error


def _question(body: bytes, unreadable: str = "") -> Question:
    question = msgspec.json.decode(body, type=AdmissionQuestion)
    if question.api_version != API_VERSION or question.kind != "AdmissionReview":
        raise UnreadableReviewError(
            f"the body is a {question.kind[:80]} of {question.api_version[:80]}: only AdmissionReview of {API_VERSION} "
            "is understood (admissionReviewVersions: [v1])"
        )
    request = question.request
    if not request.uid:
        raise UnreadableReviewError("request.uid is missing, which the answer has to repeat")
    return Question(request, _document(request, request.object), _document(request, request.old_object), unreadable)


def _document(request: AdmissionRequest, encoded: msgspec.Raw) -> dict[str, Any] | None:
    value = msgspec.json.decode(encoded)
    if not isinstance(value, dict):
        return None
    return {**value, "apiVersion": request.kind.api_version, "kind": request.kind.kind}


def _whole_texts(body: bytes) -> bytes:
    """Return the text with U+FFFD, as Go reads it, in place of what is no character."""
    return _ESCAPE.sub(_whole, body.decode("utf-8", "replace").encode())


def _whole(match: re.Match[bytes]) -> bytes:
    lone = len(match[0]) == _LONE and match[0][2:3] in b"dD" and match[0][3:4] not in b"01234567"
    return rb"\ufffd" if lone else match[0]


def _without_depths(body: bytes) -> bytes:
    """Return the text with null in place of every object and list that lies too deep."""
    kept: list[bytes] = []
    depth = start = 0
    for token in _TOKEN.finditer(body):
        match token[0]:
            case b"[" | b"{":
                depth += 1
                if depth == _DEEPEST + 1:
                    kept.append(body[start : token.start()])
            case b"]" | b"}":
                if depth == _DEEPEST + 1:
                    kept.append(b"null")
                    start = token.end()
                depth -= 1
            case _:
                pass
    return b"".join(kept) + body[start:] if depth <= _DEEPEST else b""


class _Opaque(msgspec.Struct):
    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"null")


class _Config(msgspec.Struct):
    opaque: _Opaque | None = None


class _Devices(msgspec.Struct):
    config: list[_Config] | None = None


class _Spec(msgspec.Struct):
    devices: _Devices | None = None
    config: list[_Config] | None = None
    spec: "_Spec | None" = None


class _Object(msgspec.Struct):
    spec: _Spec | None = None


def parameters(encoded: msgspec.Raw) -> Iterator[tuple[str, bytes]]:
    """Yield the place and the text of every opaque config for a driver of ours, as the node will get it.

    An object of another shape has none: what is wrong with its shape is told elsewhere.
    """
    try:
        spec, path = msgspec.json.decode(encoded, type=_Object).spec, "spec"
    except msgspec.ValidationError:
        return
    if spec is not None and spec.spec is not None:
        spec, path = spec.spec, "spec.spec"
    if spec is None:
        return
    places = [(f"{path}.config", spec.config)]
    if spec.devices is not None:
        places.append((f"{path}.devices.config", spec.devices.config))
    for place, entries in places:
        for index, entry in enumerate(entries or ()):
            if entry.opaque is not None and entry.opaque.driver in opaque.KINDS:
                yield f"{place}[{index}].opaque.parameters", bytes(entry.opaque.parameters)


def twice(encoded: msgspec.Raw) -> Iterator[Problem]:
    """Yield fields that stand twice in a config of ours. The node refuses them; what decodes an object hides them."""
    for place, text in parameters(encoded):
        try:
            strict.load(text)
        except InvalidConfigError as error:
            yield from under(place, error.problems)
