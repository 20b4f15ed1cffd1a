"""What an API server may send is read, even what our decoder does not take; what else comes is no review."""

import json

import pytest

from dra_gpu.webhook import admission, reading
from tests.unit.validation.manifests import claim, config, request
from tests.unit.webhook.questions import review

DEEP = 5_000


def body(document):
    """Return a review in which "HERE" is to be replaced."""
    return json.dumps(review(document))


def with_params(driver, cls, text):
    asked = body(claim(request(cls=cls), configs=[config(driver=driver, more="HERE")]))
    return asked.replace('"HERE"', text).encode("utf-8", "surrogateescape")


STRANGE = {
    "deep lists": "[" * DEEP + "]" * DEEP,
    "deep objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "brackets in a text": "[" * DEEP + r'"]]\"[{"' + "]" * DEEP,
    "half a pair": r'"\ud800"',
    "the other half": r'"x\udfffy"',
    "halves the wrong way round": r'"\udc00\ud83d"',
    "bytes that are no text": b'"\xff\xed\xa0\x80"'.decode("utf-8", "surrogateescape"),
    "both": r'["\ud800",' + "[" * DEEP + "]" * (DEEP + 1),
}


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE)
def test_strange_configs_of_other_drivers_are_let_through(text):
    asked = reading.read(with_params("nic.example.com", "nic.example.com", text))

    assert not admission.is_ours(asked)


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE)
def test_strange_configs_beside_or_in_a_claim_of_ours_are_denied_since_no_node_can_read_them(text):
    for driver in ("nic.example.com", "gpu.nvidia.com"):
        asked = reading.read(with_params(driver, "gpu.nvidia.com", text))

        assert admission.is_ours(asked)
        assert any("remove it: the driver could not read this object" in str(one) for one in admission.problems(asked))


@pytest.mark.parametrize("text", [r'"\ud83d\ude00"', r'"\\ud800"', r'"\\\\udc00 \n \u0041"', r'"\"[[["', '"😀"'])
def test_texts_that_only_look_strange_are_read_as_they_are(text):
    asked = reading.read(with_params("nic.example.com", "gpu.nvidia.com", text))

    assert asked.unreadable == ""
    assert asked.document["spec"]["devices"]["config"][0]["opaque"]["parameters"]["more"] == json.loads(text)


def test_the_rest_of_an_object_with_something_strange_is_read_as_it_is():
    asked = reading.read(with_params("nic.example.com", "gpu.nvidia.com", STRANGE["both"]))

    parameters = asked.document["spec"]["devices"]["config"][0]["opaque"]["parameters"]
    assert parameters["more"][0] == "\ufffd"
    assert parameters["kind"] == "GpuConfig"


GARBAGE = [
    b"",
    b"null",
    b"[]",
    b"{",
    b"\xff\xfe",
    b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}',
    b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": null}',
    b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {"uid": 7}}',
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000,
    b'"' * 10_001,
    b"\\" * 10_001,
    json.dumps(review(claim()) | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(),
    json.dumps(review(claim()) | {"kind": "Pod"}).encode(),
    json.dumps(review(claim() | {"more": [[]] * 200_000})).encode(),
    json.dumps(review(claim() | {"more": {str(number): 1 for number in range(200_000)}})).encode(),
    json.dumps(review(claim(), uid="")).encode(),
    json.dumps(review(claim(), operation="EAT")).encode(),
    json.dumps(review(claim(), kind={"group": "x"})).encode(),
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_no_review(garbage):
    with pytest.raises(reading.UnreadableReviewError):
        reading.read(garbage)
