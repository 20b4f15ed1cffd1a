"""What is denied, what is allowed, and what is nobody's business here."""

import copy
import json

import pytest

from dra_gpu.webhook import admission, reading
from tests.unit.validation.manifests import claim, config, device_class, request, share
from tests.unit.webhook.questions import answer, question

BAD = config(sharing={"strategy": "TimeSlicing", "mpsConfig": {}})
FOREIGN = config(driver="nic.example.com", version="nic.example.com/v1", kind="NicConfig", mtu="jumbo")
DOMAIN = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomain",
    "metadata": {"name": "d", "namespace": "team"},
    "spec": {"channel": {"resourceClaimTemplate": {"name": ""}}},
}


@pytest.mark.case("C136")
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_a_bad_config_is_denied_in_every_version_and_kind_by_its_path_there(version, kind):
    given = answer(claim(request(), configs=[BAD], version=version, kind=kind))

    path = "spec.spec" if kind == "ResourceClaimTemplate" else "spec"
    assert not given.allowed
    assert given.uid == "0b7c"
    assert given.status.message == (
        f"{path}.devices.config[0].opaque.parameters.sharing.mpsConfig does not belong to strategy TimeSlicing: "
        "remove it, or set strategy: MPS"
    )
    assert given.status.code == 422
    (cause,) = given.status.details.causes
    assert cause.field == f"{path}.devices.config[0].opaque.parameters.sharing.mpsConfig"
    assert cause.message == "does not belong to strategy TimeSlicing: remove it, or set strategy: MPS"


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_a_class_with_a_bad_config_is_denied_whatever_its_name(version):
    assert not answer(device_class("ours", BAD) | {"apiVersion": f"resource.k8s.io/{version}"}).allowed


def test_a_compute_domain_is_checked_too():
    assert not answer(DOMAIN).allowed


def test_every_problem_is_told_at_once():
    given = answer(claim(share(computePercent="200", memory="10"), configs=[BAD]))

    assert [cause.field for cause in given.status.details.causes] == [
        "spec.devices.requests[0].exactly.capacity.requests['computePercent']",
        "spec.devices.requests[0].exactly.capacity.requests['memory']",
        "spec.devices.config[0].opaque.parameters.sharing.mpsConfig",
    ]


def test_what_works_but_is_not_what_somebody_wants_is_allowed_with_a_warning():
    given = answer(claim(share(memory="1Mi")))

    assert given.allowed
    (said,) = given.warnings
    assert said == (
        "spec.devices.requests[0].exactly.capacity.requests['memory'] is 1Mi, of which the scheduler makes 1Gi, "
        "the least of a share: write 1Gi"
    )


def test_a_field_of_a_newer_kubernetes_is_no_reason_to_deny():
    given = answer(claim(request(hourlyRate=3)))

    assert given.allowed
    assert "hourlyRate is not a known field" in given.warnings[0]


@pytest.mark.parametrize(
    "document",
    [
        claim(request(cls="nic.example.com", count=0), configs=[FOREIGN]),
        claim(request(cls="nic.example.com"), configs=[FOREIGN | {"requests": ["nobody"]}]),
        device_class("nic.example.com", FOREIGN, nonsense=1),
        claim() | {"spec": None},
        claim() | {"spec": {"devices": {"requests": "all", "config": {"a": [1]}}}},
        claim() | {"spec": {"devices": {"requests": [None, {"exactly": [], "firstAvailable": 3}], "config": [[]]}}},
        device_class("x") | {"spec": [], "metadata": 3},
        {"apiVersion": "v1", "kind": "Pod"},
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "spec": {"driver": "gpu.nvidia.com"}},
    ],
)
def test_what_names_nothing_of_ours_is_allowed_however_wrong_it_is(document):
    given = answer(document)

    assert given.allowed
    assert given.warnings == []


def test_a_config_of_ours_for_a_driver_that_nobody_knows_is_allowed_with_a_hint():
    for kind in ("ResourceClaim", "ResourceClaimTemplate"):
        given = answer(claim(request(cls="other"), configs=[config(driver="gpu.nvida.com")], kind=kind))

        assert given.allowed
        assert "opaque.driver is 'gpu.nvida.com', so that nobody here reads the GpuConfig" in given.warnings[0]


def test_one_class_of_ours_among_others_makes_a_claim_ours():
    other = request("nic", "nic.example.com")
    alternative = {
        "name": "b",
        "firstAvailable": [
            {"name": "x", "deviceClassName": "other"},
            {"name": "y", "deviceClassName": "monitor.nvidia.com"},
        ],
    }

    assert not answer(claim(other, request("a", "monitor.nvidia.com"))).allowed
    assert not answer(claim(other, request("a", "monitor.nvidia.com"), version="v1beta1")).allowed
    assert not answer(claim(other, alternative)).allowed


STORED = claim(request(), configs=[BAD])


def changed(change, document=STORED):
    new = copy.deepcopy(document)
    change(new)
    return new


@pytest.mark.case("C136")
@pytest.mark.parametrize(
    "change",
    [
        lambda new: new["metadata"].update(labels={"a": "b"}),
        lambda new: new["metadata"].update(finalizers=["resource.kubernetes.io/delete-protection"]),
        lambda new: new.update(status={"allocation": {}}),
        lambda new: new["metadata"].update(managedFields=[]),
    ],
)
def test_an_invalid_object_from_before_may_change_in_everything_but_what_is_invalid(change):
    assert answer(changed(change), operation="UPDATE", old=STORED).allowed


@pytest.mark.case("C136")
def test_an_object_that_is_being_deleted_is_never_held_up():
    def going(new):
        new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        new["spec"]["devices"]["config"].append(BAD)

    assert answer(changed(going), operation="UPDATE", old=STORED).allowed
    assert answer(STORED, operation="DELETE", old=STORED).allowed


@pytest.mark.case("C136")
def test_a_status_is_the_clusters_business():
    assert answer(STORED, operation="UPDATE", old=claim(request()), sub_resource="status").allowed


def test_new_content_of_an_update_is_checked():
    good = device_class("mine", config())

    assert not answer(device_class("mine", BAD), operation="UPDATE", old=good).allowed
    assert not answer(STORED, operation="UPDATE", old=None).allowed


def test_the_kind_is_what_the_server_says_and_not_what_the_object_says():
    lying = STORED | {"kind": "Pod", "apiVersion": "v1"}

    kind = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}
    assert not answer(lying, kind=kind).allowed


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"kind": "GpuConfig", "kind": "GpuConfig"}', "kind stands twice in one object"),
        ('{"sharing": {"strategy": "MPS"}, "sharing": {"strategy": "TimeSlicing"}}', "sharing stands twice"),
    ],
)
def test_a_field_that_stands_twice_is_denied_as_the_node_would(text, told):
    encoded = json.dumps(claim(request(), configs=[config()]))
    first = '"kind": "GpuConfig"'
    twice = encoded.replace(first, f"{first}, {text[1:-1]}", 1)
    assert twice != encoded

    asked = reading.read(
        json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"})[:-1].encode()
        + b', "request": {"uid": "1", "operation": "CREATE", "kind": '
        + b'{"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}, "object": '
        + twice.encode()
        + b"}}"
    )

    assert any(told in str(problem) for problem in admission.problems(asked))


def test_more_than_kubernetes_takes_is_denied_without_a_closer_look():
    many = claim(*(request(f"r{number}") for number in range(33)))
    long = claim(request(), configs=[config(x="y" * 10_240)])
    wide = claim(request(), configs=[config(**{f"f{number}": 1 for number in range(300)})])

    assert answer(many).status.message == "spec.devices.requests has 33 entries: write at most 32"
    assert "has 10310 bytes: write at most 10240" in answer(long).status.message
    assert "has 303 values" in answer(wide).status.message


def test_what_is_no_object_is_denied_where_its_kind_is_ours():
    assert not answer(DOMAIN, object=[1]).allowed
    assert answer(STORED, object=[1]).allowed


def test_nothing_is_checked_twice_that_is_not_ours():
    assert not admission.is_ours(question(claim(request(cls="nic.example.com"))))
