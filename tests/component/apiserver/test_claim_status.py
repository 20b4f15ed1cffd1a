"""What the driver says about devices reaches the claim that it means, later than the answer, and once."""

import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from dra_gpu.api.claim_status_v1 import AllocatedDeviceStatus, Condition
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.claim_status import ClaimStatusWriter, StatusLimits
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.resources import RESOURCE_CLAIMS
from dra_gpu_sim.apiserver.server import ApiServer

from .conftest import SkippingClock, running

SHARE = "00000001-5555-4444-3333-222222222222"


def status(enforced: str = "True", share: str | None = SHARE, **data) -> AllocatedDeviceStatus:
    conditions = [Condition("Enforced", enforced, "LimitsBind", "no container can lift them")]
    raw = msgspec.Raw(json.dumps(data or {"view": "shared"}).encode())
    return AllocatedDeviceStatus("gpu.nvidia.com", "node-a", "gpu-0-shared", share, conditions, raw)


class Minutes:
    """A wall clock that moves one minute with every look."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.time += timedelta(minutes=1)
        return self.time


class Refusing:
    """An API server that answers each apply with the next error, then takes everything."""

    def __init__(self, *faults: errors.ApiError) -> None:
        self.faults = list(faults)
        self.bodies: list[object] = []

    async def apply(self, _resource, body, *_place, **_options):
        self.bodies.append(body)
        if self.faults:
            raise self.faults.pop(0)


def failure(kind: type[errors.ApiError], detail: str = "no") -> errors.ApiError:
    return kind("patch", "resourceclaims.resource.k8s.io", "ml/job", status=409, detail=detail)


def writer(api, limits: StatusLimits | None = None) -> ClaimStatusWriter:
    return ClaimStatusWriter(api, limits=limits, clock=SkippingClock(), now=Minutes())


async def written(spoken: ClaimStatusWriter) -> None:
    """Run the writer until it has nothing left to do."""
    async with running(spoken.run):
        while spoken._pending or spoken._at_work:
            await SkippingClock().sleep(0)


async def claim(api: HttpKubernetesApi, name: str = "job") -> str:
    made = await api.create(RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": "ml"}}, "ml")
    return made.metadata.uid


async def test_it_stands_in_the_claims_status_under_its_share(server: ApiServer, api: HttpKubernetesApi) -> None:
    uid = await claim(api)
    spoken = writer(api)
    spoken.put("ml", "job", uid, [status()])
    await written(spoken)
    [found] = server.objects("resourceclaims")
    assert found["status"]["devices"] == [
        {
            "driver": "gpu.nvidia.com",
            "pool": "node-a",
            "device": "gpu-0-shared",
            "shareID": SHARE,
            "conditions": [
                {
                    "type": "Enforced",
                    "status": "True",
                    "reason": "LimitsBind",
                    "message": "no container can lift them",
                    "lastTransitionTime": "2026-01-01T00:01:00Z",
                }
            ],
            "data": {"view": "shared"},
        }
    ]


async def test_a_claim_is_named_by_its_uid() -> None:
    api = Refusing()
    spoken = writer(api)
    spoken.put("ml", "job", "u1", [status()])
    await written(spoken)
    body = msgspec.json.decode(msgspec.json.encode(api.bodies[0]))
    assert body["metadata"] == {"name": "job", "namespace": "ml", "uid": "u1"}
    assert (body["apiVersion"], body["kind"]) == ("resource.k8s.io/v1", "ResourceClaim")


async def test_only_the_newest_of_a_claim_is_written() -> None:
    api = Refusing()
    spoken = writer(api)
    for number in range(5):
        spoken.put("ml", "job", "u1", [status(number=number)])
    await written(spoken)
    [body] = api.bodies
    assert b'"number": 4' in msgspec.json.encode(body)


async def test_the_same_is_not_written_again() -> None:
    api = Refusing()
    spoken = writer(api)
    for _ in range(3):
        spoken.put("ml", "job", "u1", [status()])
        await written(spoken)
    assert len(api.bodies) == 1


async def test_a_condition_keeps_its_time_as_long_as_it_keeps_its_status() -> None:
    api = Refusing()
    spoken = writer(api)
    for enforced, number in (("True", 1), ("True", 2), ("False", 3)):
        spoken.put("ml", "job", "u1", [status(enforced, number=number)])
        await written(spoken)
    times = [body.status.devices[0].conditions[0].last_transition_time for body in api.bodies]
    assert times == ["2026-01-01T00:01:00Z", "2026-01-01T00:01:00Z", "2026-01-01T00:03:00Z"]


@pytest.mark.parametrize(
    "fault",
    [
        failure(errors.NotFoundError),
        failure(errors.ConflictError, "Precondition failed: UID in precondition: u1, UID in object meta: u2"),
        failure(errors.InvalidError, "metadata.uid: Invalid value: field is immutable"),
    ],
)
async def test_a_claim_that_is_gone_or_replaced_is_dropped_without_a_loss(fault: errors.ApiError) -> None:
    api = Refusing(fault)
    spoken = writer(api)
    spoken.put("ml", "job", "u1", [status()])
    await written(spoken)
    assert len(api.bodies) == 1
    assert spoken.dropped == 0


async def test_a_status_that_the_server_refuses_is_counted_and_not_insisted_on() -> None:
    api = Refusing(failure(errors.InvalidError, "status.devices[0]: must be an allocated device in the claim"))
    spoken = writer(api)
    spoken.put("ml", "job", "u1", [status()])
    await written(spoken)
    assert (len(api.bodies), spoken.dropped) == (1, 1)


async def test_an_api_server_that_is_away_is_waited_for() -> None:
    api = Refusing(*(failure(errors.UnavailableError) for _ in range(3)))
    spoken = writer(api)
    spoken.put("ml", "job", "u1", [status()])
    await written(spoken)
    assert (len(api.bodies), spoken.dropped) == (4, 0)


async def test_a_claim_without_the_right_is_given_up_after_some_tries() -> None:
    api = Refusing(*(failure(errors.ForbiddenError) for _ in range(3)))
    spoken = writer(api, StatusLimits(attempts=3))
    spoken.put("ml", "job", "u1", [status()])
    await written(spoken)
    assert (len(api.bodies), spoken.dropped) == (3, 1)


async def test_what_came_meanwhile_is_not_replaced_by_what_failed() -> None:
    api = Refusing(failure(errors.UnavailableError))
    spoken = writer(api)
    spoken.put("ml", "job", "u1", [status(number=1)])
    first = api.apply

    async def put_meanwhile(*arguments, **options):
        if not api.bodies:
            spoken.put("ml", "job", "u1", [status(number=2)])
        return await first(*arguments, **options)

    api.apply = put_meanwhile
    await written(spoken)
    assert [b'"number": 2' in msgspec.json.encode(body) for body in api.bodies] == [False, True]


async def test_the_queue_is_bounded() -> None:
    spoken = writer(Refusing(), StatusLimits(pending=2))
    for number in range(5):
        spoken.put("ml", "job", f"u{number}", [status()])
    assert spoken.dropped == 3


async def test_a_claim_of_unknown_name_or_without_devices_is_nothing_to_write() -> None:
    api = Refusing()
    spoken = writer(api)
    spoken.put("", "", "u1", [status()])
    spoken.put("ml", "job", "u2", [])
    await written(spoken)
    assert api.bodies == []
