"""AdmissionReviews as an API server sends them."""

import json

from dra_gpu.webhook import admission, answers, reading

KINDS = {
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "DeviceClass": "deviceclasses",
    "ComputeDomain": "computedomains",
    "ClaimResize": "claimresizes",
}


def review(document, *, operation="CREATE", old=None, uid="0b7c", sub_resource="", **request):
    """Return the review of an object, by its own kind."""
    group, _, version = document["apiVersion"].rpartition("/")
    metadata = document["metadata"] if isinstance(document.get("metadata"), dict) else {}
    kind = {"group": group, "version": version, "kind": document["kind"]}
    resource = {"group": group, "version": version, "resource": KINDS.get(document["kind"], "others")}
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": uid,
            "kind": kind,
            "resource": resource,
            "subResource": sub_resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": metadata.get("name", ""),
            "namespace": metadata.get("namespace", ""),
            "operation": operation,
            "userInfo": {"username": "jane", "groups": ["system:authenticated"]},
            "object": None if operation == "DELETE" else document,
            "oldObject": old,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        }
        | request,
    }


def question(document, **more):
    return reading.read(json.dumps(review(document, **more)).encode())


def answer(document, **more):
    """Return what is answered to a review, without threads and network."""
    asked = question(document, **more)
    found = admission.problems(asked) if admission.is_ours(asked) else admission.hints(asked)
    return answers.of_problems(asked.request, found)
