"""What the kubelet hears for each claim, whatever the service behind does."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from dra_gpu.kubelet.calls import RunningCalls
from dra_gpu.kubelet.dra import ClaimCalls
from dra_gpu.kubelet.service import ClaimError, ClaimRef, PreparedClaim, PreparedDevice

ONE = ClaimRef("default", "one", "uid-1")
TWO = ClaimRef("default", "two", "uid-2")
READY = PreparedClaim((PreparedDevice(("gpu",), "node-a", "gpu-0", ("k8s.gpu.nvidia.com/claim=uid-1-gpu-0",)),))


class Service:
    """Answers as told and remembers what it was asked."""

    def __init__(self, answers: Mapping[str, PreparedClaim | ClaimError | None] | Exception) -> None:
        self.answers = answers
        self.asked: list[Sequence[ClaimRef]] = []
        self.deadlines: list[float] = []

    async def prepare(self, claims: Sequence[ClaimRef], deadline: float):
        self.asked.append(claims)
        self.deadlines.append(deadline)
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers

    unprepare = prepare


class Stuck:
    """Does not return until told to."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended = ""

    async def prepare(self, claims: Sequence[ClaimRef], _deadline: float):
        self.entered.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "finished"
        return {claim.uid: READY for claim in claims}

    unprepare = prepare


def calls_to(service, **options) -> ClaimCalls:
    return ClaimCalls("gpu.nvidia.com", service, RunningCalls(), **options)


async def test_each_claim_gets_its_own_answer():
    calls = calls_to(Service({"uid-1": READY, "uid-2": ClaimError("gpu-1 is gone")}))

    answers = await calls.prepare([ONE, TWO], 45)

    assert answers == {"uid-1": READY, "uid-2": ClaimError("gpu-1 is gone")}


@pytest.mark.case("C08")
async def test_an_exception_becomes_an_error_of_every_claim_and_names_it():
    calls = calls_to(Service(ValueError("bad luck")))

    answers = await calls.prepare([ONE, TWO], 45)

    assert answers["uid-1"] == ClaimError(
        "could not prepare claim default/one (uid uid-1): ValueError: bad luck; this is a fault of gpu.nvidia.com,"
        " see its log"
    )
    assert "default/two" in answers["uid-2"].message


async def test_a_claim_the_service_forgot_gets_an_error():
    calls = calls_to(Service({"uid-1": None}))

    answers = await calls.unprepare([ONE, TWO], 45)

    assert answers["uid-1"] is None
    assert answers["uid-2"].message.startswith(
        "could not give back claim default/two (uid uid-2): gpu.nvidia.com gave no answer"
    )


async def test_a_claim_without_uid_gets_an_error_and_never_reaches_the_service():
    service = Service({"uid-1": READY})

    answers = await calls_to(service).prepare([ClaimRef("default", "nameless", ""), ONE], 45)

    assert "names no UID" in answers[""].message
    assert service.asked == [[ONE]]


async def test_a_claim_named_twice_is_prepared_once():
    service = Service({"uid-1": READY})

    assert await calls_to(service).prepare([ONE, ONE], 45) == {"uid-1": READY}
    assert service.asked == [[ONE]]


async def test_answers_for_claims_nobody_asked_about_are_left_out():
    assert await calls_to(Service({"uid-1": READY, "uid-9": READY})).prepare([ONE], 45) == {"uid-1": READY}


async def test_no_claims_need_no_service():
    service = Service({})

    assert await calls_to(service).prepare([], 45) == {}
    assert service.asked == []


@pytest.mark.parametrize(("left", "expected"), [(45, 44), (None, 44), (2, 1.8), (10**9, 119)])
async def test_the_service_has_to_be_done_a_margin_before_the_caller_stops_listening(left, expected):
    service = Service({"uid-1": READY})
    clock = asyncio.get_running_loop().time
    before = clock()

    await calls_to(service).prepare([ONE], left)

    assert before + expected <= service.deadlines[0] <= clock() + expected


async def test_a_service_that_overruns_is_answered_for_and_goes_on():
    service = Stuck()
    calls = calls_to(service)

    answers = await calls.prepare([ONE], 0.1)

    assert "the work goes on and the kubelet's next call finds it" in answers["uid-1"].message
    assert calls.running.count == 1
    service.go_on.set()
    assert await calls.running.wait_idle(30)
    assert service.ended == "finished"


async def test_a_client_that_goes_away_does_not_cut_the_work():
    service = Stuck()
    calls = calls_to(service)
    call = asyncio.ensure_future(calls.prepare([ONE], 45))
    await service.entered.wait()

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    service.go_on.set()
    assert await calls.running.wait_idle(30)
    assert service.ended == "finished"


@pytest.mark.case("C31")
async def test_while_stopping_new_calls_are_refused_with_the_reason():
    service = Service({"uid-1": READY})
    calls = calls_to(service)
    calls.running.close()

    answers = await calls.prepare([ONE], 45)

    assert "is stopping and takes no new calls" in answers["uid-1"].message
    assert service.asked == []


async def test_work_cancelled_at_the_end_of_a_drain_is_answered_for():
    service = Stuck()
    calls = calls_to(service)
    call = asyncio.ensure_future(calls.prepare([ONE], 45))
    await service.entered.wait()

    assert await calls.running.cancel(5) == 0

    assert "stopped in the middle" in (await call)["uid-1"].message
    assert service.ended == "cancelled"
