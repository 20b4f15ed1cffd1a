"""Kubelets 1.34 to 1.37 byte for byte: each is understood, and understands the answers; neither minds what is newer."""

import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dra_gpu.kubelet.server import KubeletServer
from dra_gpu.kubelet.service import ClaimRef
from tests.component.upgrade import kubelet_messages
from tests.component.upgrade.kubelet_messages import (
    DRA,
    DRIVER,
    FIXTURES,
    KUBELETS,
    LATER,
    REGISTRATION,
    SHARE,
    WATCH,
    Answering,
    answer_type,
    ask,
    call,
    normal,
)

CLAIMS = [ClaimRef("team", name, f"uid-{name}") for name in ("whole", "share", "bad")]
PREPARE = [f"{version}.NodePrepareResources" for version in DRA]
UNPREPARE = [f"{version}.NodeUnprepareResources" for version in DRA]
ANSWERS = {
    name: bytes.fromhex(text) for name, text in json.loads((FIXTURES / "driver-answers.json").read_text()).items()
}


@pytest.fixture
def service() -> Answering:
    return Answering()


@pytest.fixture
async def server(service: Answering) -> AsyncIterator[KubeletServer]:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        made = kubelet_messages.server_in(Path(name), service)
        await made.start()
        yield made
        await made.stop()


@pytest.fixture(params=KUBELETS)
def kubelet(request: pytest.FixtureRequest) -> dict:
    found = json.loads((FIXTURES / f"kubelet-{request.param}.json").read_text())
    assert found["kubelet"].startswith(f"v0.{request.param.removeprefix('1.')}.")
    found["says"] = {name: bytes.fromhex(text) for name, text in found["says"].items()}
    return found


def with_later_fields(request: bytes) -> bytes:
    """The request of a later kubelet, which says more about each claim, and of the whole."""
    found, at = b"", 0
    while at < len(request):
        tag, length = request[at], request[at + 1]
        assert tag == 0x0A  # field 1, length-delimited: a claim
        assert length + len(LATER) < 0x80  # one byte of length
        found += bytes([tag, length + len(LATER)]) + request[at + 2 : at + 2 + length] + LATER
        at += 2 + length
    return found + LATER


@pytest.mark.parametrize("name", PREPARE)
async def test_every_kubelet_gets_the_answer_that_it_was_recorded_to_understand(server, service, kubelet, name):
    answer = await ask(server, name, kubelet["says"][name])

    assert service.asked == CLAIMS
    assert normal(name, answer) == ANSWERS[name]
    seen = kubelet["reads"][name]
    assert {uid: [one["device"] for one in claim.get("devices", ())] for uid, claim in seen.items()} == {
        "uid-whole": ["gpu-0"],
        "uid-share": ["gpu-1-shared"],
        "uid-bad": [],
    }
    assert seen["uid-whole"]["devices"][0]["cdi"] == [f"k8s.{DRIVER}/claim=uid-whole"]
    assert "gpu-2 is gone" in seen["uid-bad"]["error"]


@pytest.mark.parametrize("name", UNPREPARE)
async def test_every_kubelet_hears_that_a_claim_was_given_back(server, service, kubelet, name):
    answer = await ask(server, name, kubelet["says"][name])

    assert service.asked == CLAIMS[:1]
    assert normal(name, answer) == ANSWERS[name]
    assert kubelet["reads"][name] == {"uid-whole": {}}


@pytest.mark.parametrize("name", [*PREPARE, *UNPREPARE])
async def test_what_a_later_kubelet_adds_to_its_requests_changes_nothing(server, service, kubelet, name):
    answer = await ask(server, name, with_later_fields(kubelet["says"][name]))

    assert service.asked == (CLAIMS if name in PREPARE else CLAIMS[:1])
    assert normal(name, answer) == ANSWERS[name]


def test_the_share_id_goes_to_kubelets_that_know_it_and_is_no_trouble_to_the_one_that_does_not(kubelet):
    [share] = kubelet["reads"]["v1.NodePrepareResources"]["uid-share"]["devices"]

    assert share.get("share") == (None if kubelet["kubelet"].startswith("v0.34.") else SHARE)
    [older] = kubelet["reads"]["v1beta1.NodePrepareResources"]["uid-share"]["devices"]
    assert "share" not in older


async def test_every_kubelet_registers_the_driver_by_a_version_that_it_reads_there(server, kubelet):
    info = answer_type("GetInfo").FromString(await ask(server, "GetInfo", kubelet["says"]["GetInfo"] + LATER))

    assert kubelet["reads"]["GetInfo"] == {
        "type": info.type,
        "name": info.name,
        "endpoint": "/a/dra.sock",
        "versions": list(info.supported_versions),
    }
    # Source: K8s v1.37 pkg/kubelet/cm/dra/plugin: the first of these that the plugin advertises is called.
    assert list(info.supported_versions)[:2] == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]


async def test_every_kubelet_hears_how_well_devices_are(server, kubelet):
    answer = await ask(server, WATCH, kubelet["says"][WATCH] + LATER)

    assert normal(WATCH, answer) == ANSWERS[WATCH]
    seen = kubelet["reads"][WATCH]
    assert {one["device"]: (one["pool"], one["health"]) for one in seen} == {
        "gpu-0": ("node-a", "HEALTHY"),
        "gpu-1-shared": ("node-a", "UNHEALTHY"),
        "gpu-2": ("node-a", "UNKNOWN"),
    }
    knows_messages = not kubelet["kubelet"].startswith(("v0.34.", "v0.35."))
    assert [one.get("message", "") for one in seen] == ["", "XID 79: reset it" if knows_messages else "", ""]


async def test_every_kubelets_verdict_is_heard_with_what_a_later_one_adds(server, kubelet):
    notify = REGISTRATION + "NotifyRegistrationStatus"

    await call(server.paths.registration, notify, kubelet["says"]["registered"] + LATER)
    assert server.registration.registered.is_set()

    await call(server.paths.registration, notify, kubelet["says"]["refused"] + LATER)
    assert not server.registration.registered.is_set()
