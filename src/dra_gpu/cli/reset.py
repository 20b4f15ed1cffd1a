"""`kubectl gpu reset`: drain, wait until no claim has the GPU, let the node reset it, give it back.

What was written before a failure stays: a GPU that is to be reset is a sick one, and nobody should get it. Only what
is known beforehand to be in vain is refused before anything is written.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence

from dra_gpu.api import cordon
from dra_gpu.api.cordon import ResetAnswer
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.kubernetes_api import Selection
from dra_gpu.apiserver.resources import DEVICE_TAINT_RULES, EVENTS, PODS
from dra_gpu.cli import refusals
from dra_gpu.cli.cordoning import POLL_SECONDS, Service, ServiceError, ServiceResult
from dra_gpu.cli.taint_rules import Effect, Fate, Held

ANSWER_SECONDS = 240.0
"""For the node's part: a lock, whoever is just ending, the reset itself (120 s at most), and an Event's way."""


class _StillHeldError(Exception):
    """Claims did not end in time; the message names them."""


async def reset_gpu(
    service: Service, *, force: bool, keep: bool, seconds: float, tell: Callable[[str], None]
) -> ServiceResult:
    """Reset a GPU.

    Args:
        service: the GPU.
        force: delete the pods that have it, also those that put up with being drained or are not evicted.
        keep: leave it cordoned afterwards.
        seconds: how long pods may take to end.
        tell: takes a line about how far it is.

    Raises:
        ServiceError: it was not reset, or not given back; the message says why, and how the GPU is left.
        ApiError: the API server refuses or does not answer before anything is done.
    """
    gpu = service.gpu
    if not gpu.usable:
        raise ServiceError(f"{gpu}: no device of it is published that could be taken out of service")
    claims = await service.held()
    staying = [claim for claim in claims if claim.fate == Fate.STAYS.value]
    if staying and not force:
        raise ServiceError(
            f"{gpu} was not reset: the pods of {_shown(staying)} put up with being drained: end them, or give "
            "--force-drain to have them deleted"
        )
    plan = await service.take_out(Effect.DRAIN)
    left = f"It stays drained: `kubectl gpu uncordon {gpu.node} {gpu.name}` gives it back"
    try:
        claims = await _empty(service, claims, force=force, seconds=seconds, tell=tell)
        tell(f"{gpu} is free; its node resets it")
        answer = await _ask(service, plan.rules[0])
    except _StillHeldError as error:
        raise ServiceError(f"{error}. {left}") from None
    except errors.ApiError as error:
        raise ServiceError(f"{gpu} was not reset: {refusals.told(error)}. {left}") from error
    if not answer.done:
        raise ServiceError(f"{gpu} was not reset: {answer.text}. {left}")
    try:
        if keep:
            await _take_label(service, plan.rules[0])
        names = () if keep else await service.give_back()
    except errors.ApiError as error:
        raise ServiceError(f"{gpu} was reset and not given back: {refusals.told(error)}. {left}") from error
    return ServiceResult(
        "reset",
        gpu.node,
        gpu.name,
        gpu.uuid,
        Effect.DRAIN.value if keep else "",
        changed=True,
        rules=plan.rules if keep else (),
        claims=tuple(claims),
        message=answer.text if names or keep else f"{answer.text}; its rules were gone already",
    )


async def _empty(
    service: Service, claims: list[Held], *, force: bool, seconds: float, tell: Callable[[str], None]
) -> list[Held]:
    """Wait until no claim has a drained GPU; returns all that had it.

    The scheduler may have given it to somebody while it was being drained: it hears of that a moment later.

    Raises:
        _StillHeldError: some still have it.
        ApiError: the API server refuses or does not answer.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    everybody = dict.fromkeys(claims)
    while True:
        if claims:
            tell(f"{service.gpu} is drained; waiting for {_shown(claims)} to end")
        await _delete_pods(service, claims if force else ())
        remaining = await service.wait_free(claims, until - loop.time())
        if not remaining:
            claims = await service.held()
            if not claims:
                return list(everybody)
            everybody |= dict.fromkeys(claims)
            remaining = [] if loop.time() < until else claims
        if remaining:
            raise _StillHeldError(
                f"{service.gpu} was not reset: {_shown(remaining)} still has it after {seconds:g} s: look at its pods"
            )


async def _ask(service: Service, rule: str) -> ResetAnswer:
    """Ask the node, and return its answer; the request is taken back when there is none, or it is a refusal."""
    request = secrets.token_hex(8)
    await service.api.patch(DEVICE_TAINT_RULES, _label(request), rule)
    answer = None
    try:
        answer = await _wait_answer(service, rule, request)
    finally:
        if answer is None or not answer.done:
            await _take_back(service, rule, request)
    return answer


async def _wait_answer(service: Service, rule: str, request: str) -> ResetAnswer:
    node = service.gpu.node
    about = Selection("default", field_selector=f"involvedObject.kind=Node,involvedObject.name={node}")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ANSWER_SECONDS
    while loop.time() < deadline:
        try:
            stands = await _stands(service, rule, request)
            events = (await service.api.list(EVENTS, about)).items
        except errors.UnavailableError:
            stands, events = True, ()
        answers = (ResetAnswer.read(event.reason, event.message, request) for event in events)
        found = next(filter(None, answers), None)
        if found is not None:
            return found
        if not stands:
            raise ServiceError(
                f"{service.gpu}: somebody else has asked for another reset, or has given it back, before its node "
                f"answered: see `kubectl gpu list --node {node}`"
            )
        await asyncio.sleep(POLL_SECONDS)
    raise ServiceError(
        f"{service.gpu}: its node has not answered within {ANSWER_SECONDS:g} s: is a node plugin running there "
        f"(`kubectl gpu list --node {node}`), and what does its log say? The GPU stays drained"
    )


async def _stands(service: Service, rule: str, request: str) -> bool:
    """Tell whether the rule still has our request."""
    try:
        found = await service.api.get(DEVICE_TAINT_RULES, rule)
    except errors.NotFoundError:
        return False
    return found.metadata.labels.get(cordon.RESET_LABEL) == request


async def _take_back(service: Service, rule: str, request: str) -> None:
    """Take our request off the rule, so that a node plugin that starts later does not carry it out."""
    try:
        if await _stands(service, rule, request):
            await service.api.patch(DEVICE_TAINT_RULES, _label(None), rule)
    except errors.ApiError:
        return  # the failure before this one says more


async def _take_label(service: Service, rule: str) -> None:
    """Take our request off a rule that stays, if it is there yet."""
    try:
        await service.api.patch(DEVICE_TAINT_RULES, _label(None), rule)
    except errors.NotFoundError:
        return


async def _delete_pods(service: Service, claims: Sequence[Held]) -> None:
    for claim in claims:
        for pod in claim.pods:
            try:
                await service.api.delete(PODS, pod, claim.namespace)
            except errors.NotFoundError:
                continue


def _label(request: str | None) -> dict[str, object]:
    return {"metadata": {"labels": {cordon.RESET_LABEL: request}}}


def _shown(claims: Sequence[Held]) -> str:
    shown = ", ".join(claim.shown for claim in claims[:5])
    return f"{shown} and {len(claims) - 5} more" if len(claims) > 5 else shown  # noqa: PLR2004 - as many as are named
