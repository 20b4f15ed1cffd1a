"""Takes a GPU out of service and gives it back, by DeviceTaintRules: `kubectl gpu cordon`, `drain` and `uncordon`.

Every step may be repeated: what is there stays, what is missing is written, and two who do it at once make one set of
rules.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

import msgspec

from dra_gpu.api import cordon
from dra_gpu.api.device_taint_rule_v1 import DeviceTaintRule
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.kubernetes_api import KubernetesApi, Selection
from dra_gpu.apiserver.resources import DEVICE_TAINT_RULES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_gpu.cli import gpu_target, taint_rules
from dra_gpu.cli.gpu_target import GpuTarget
from dra_gpu.cli.listing import DRIVER, Claim
from dra_gpu.cli.taint_rules import Effect, Fate, Held

POLL_SECONDS = 1.0
_AT_ONCE = 8  # requests; a full GPU has some thirty devices

CLAIMS = Resource(
    RESOURCE_CLAIMS.group,
    RESOURCE_CLAIMS.version,
    RESOURCE_CLAIMS.plural,
    RESOURCE_CLAIMS.kind,
    namespaced=True,
    type=Claim,
)


class ServiceError(Exception):
    """What was asked for cannot be done; the message says why and what to do."""


class ServiceResult(msgspec.Struct, rename="camel", frozen=True):
    """What was done to a GPU.

    Attributes:
        action: `cordon`, `drain`, `uncordon` or `reset`.
        node, gpu, uuid: the GPU.
        effect: of the taint on its devices now; empty when they have none of ours.
        changed: something was written.
        rules: names of the rules that are there now.
        claims: who has something of the GPU.
        message: more about it.
    """

    action: str
    node: str
    gpu: str
    uuid: str
    effect: str
    changed: bool
    rules: tuple[str, ...] = ()
    claims: tuple[Held, ...] = ()
    message: str = ""


@dataclass(slots=True)
class Service:
    """A GPU and its rules, as they were found.

    Attributes:
        api: the cluster.
        gpu: the GPU.
        rules: every rule of ours in the cluster.
    """

    api: KubernetesApi
    gpu: GpuTarget
    rules: Sequence[DeviceTaintRule]

    @classmethod
    async def find(cls, api: KubernetesApi, node: str, gpu: str) -> "Service":
        """Look a GPU up.

        Raises:
            ServiceError: the cluster serves no rules.
            NoSuchGpuError: there is none of that name.
            ApiError: the API server refuses or does not answer.
        """
        chosen = f"spec.driver={DRIVER}"
        rules = await _rules(api)
        slices = (await api.list(RESOURCE_SLICES, Selection(field_selector=f"{chosen},spec.nodeName={node}"))).items
        if not slices:  # for the error, which names the nodes that there are: slices of a whole cluster are megabytes
            slices = (await api.list(RESOURCE_SLICES, Selection(field_selector=chosen))).items
        return cls(api, gpu_target.find(gpu_target.published(slices), node, gpu, rules, DRIVER), rules)

    async def take_out(self, effect: Effect) -> taint_rules.RulePlan:
        """Have a rule for each device; returns what was written.

        Raises:
            ServiceError: nothing of the GPU is published, or somebody else's rule has the name of one of ours.
            ApiError: the API server refuses or does not answer.
        """
        if not self.gpu.usable:
            raise ServiceError(f"{self.gpu}: no device of it is published that could be taken out of service")
        plan = taint_rules.plan(self.gpu, self.rules, effect)
        await _each([*(self.create(rule, effect) for rule in plan.create), *map(self._change, plan.change)])
        return plan

    async def give_back(self) -> tuple[str, ...]:
        """Delete every rule of ours about the GPU; returns their names.

        Raises:
            ApiError: the API server refuses or does not answer.
        """
        doomed = taint_rules.of_gpu(self.gpu, await _rules(self.api))
        await _each([_deleting(self.api, rule.metadata.name) for rule in doomed])
        return tuple(rule.metadata.name for rule in doomed)

    async def held(self) -> list[Held]:
        """Return the claims that have something of the GPU.

        Raises:
            ApiError: the API server refuses or does not answer.
        """
        return taint_rules.held(self.gpu, (await self.api.list(CLAIMS)).items)

    async def wait_free(self, claims: Sequence[Held], seconds: float) -> list[Held]:
        """Wait until claims have nothing of the GPU any more; returns those that still have at the deadline.

        Raises:
            ApiError: the API server refuses.
        """
        left = list(claims)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while left:
            still: list[Held] = []
            await _each([self._note_holder(one, still) for one in left])
            left = sorted(still, key=lambda one: one.shown)
            if not left or not loop.time() < deadline:  # so that what is no number is over, too
                break
            await asyncio.sleep(POLL_SECONDS)
        return left

    async def _note_holder(self, one: Held, still: list[Held]) -> None:
        try:
            claim = await self.api.get(CLAIMS, one.name, one.namespace)
        except errors.NotFoundError:
            return
        except errors.UnavailableError:
            still.append(one)  # it cannot be told; the deadline bounds the wait
            return
        if claim.metadata.uid == one.uid:
            still += taint_rules.held(self.gpu, [claim])

    async def create(self, rule: DeviceTaintRule, effect: Effect) -> None:
        """Make a rule, or have the one that another asker has made at the same time.

        Raises:
            ServiceError: somebody else's rule has its name.
            ApiError: the API server refuses or does not answer.
        """
        name = rule.metadata.name
        try:
            await self.api.create(DEVICE_TAINT_RULES, rule)
        except errors.AlreadyExistsError:
            there = await self.api.get(DEVICE_TAINT_RULES, name)
            if cordon.CORDON_LABEL not in there.metadata.labels:
                raise ServiceError(
                    f"DeviceTaintRule {name} is there and not of `kubectl gpu cordon`: delete or rename it"
                ) from None
            for stronger in taint_rules.plan(self.gpu, [there], effect).change:
                await self._change(stronger)

    async def _change(self, rule: DeviceTaintRule) -> None:
        taint = rule.spec.taint
        body = {
            "metadata": {"annotations": rule.metadata.annotations},
            "spec": {"taint": {"effect": taint.effect if taint is not None else ""}},
        }
        await self.api.patch(DEVICE_TAINT_RULES, body, rule.metadata.name)


async def cordon_gpu(service: Service) -> ServiceResult:
    """Let no new claim have anything of a GPU; what is there stays."""
    before = _effect(service)
    plan = await service.take_out(Effect.CORDON)
    effect = before if before == Effect.DRAIN.value else Effect.CORDON.value
    return _result("cordon", service.gpu, effect, plan, await service.held())


async def drain_gpu(service: Service) -> ServiceResult:
    """Let no new claim have anything of a GPU, and have the pods evicted that do; returns at once."""
    held = {one.uid: one for one in await service.held()}
    plan = await service.take_out(Effect.DRAIN)
    held = {one.uid: one for one in await service.held()} | held  # who came meanwhile, and who has gone already
    claims = sorted(held.values(), key=lambda one: one.shown)
    return _result("drain", service.gpu, Effect.DRAIN.value, plan, claims)


async def uncordon_gpu(service: Service, *, well: bool = False) -> ServiceResult:
    """Give a GPU back to the scheduler.

    Args:
        service: the GPU.
        well: have its node call it well, too, although it was sick; it finds again what is still wrong.

    Raises:
        ServiceError: it has no UUID by which its node could be told.
        ApiError: the API server refuses or does not answer.
    """
    gpu = service.gpu
    if well and not gpu.uuid:
        raise ServiceError(f"{gpu}: its UUID is not known, so that its node cannot be asked to call it well")
    names = await service.give_back()
    message = ""
    if well:
        request = f"{gpu.uuid},{secrets.token_hex(8)}"  # another value each time
        await service.api.patch(NODES, {"metadata": {"annotations": {cordon.CLEAR_ANNOTATION: request}}}, gpu.node)
        message = "its node will call it well, unless it finds that it is not"
    return ServiceResult("uncordon", gpu.node, gpu.name, gpu.uuid, "", changed=bool(names) or well, message=message)


def leaving(claims: Sequence[Held]) -> list[Held]:
    """Return the claims whose pods a drain ends."""
    return [claim for claim in claims if claim.fate != Fate.STAYS.value]


def _effect(service: Service) -> str:
    effects = {rule.spec.taint.effect for rule in taint_rules.of_gpu(service.gpu, service.rules) if rule.spec.taint}
    return next((effect.value for effect in (Effect.DRAIN, Effect.CORDON) if effect.value in effects), "")


def _result(
    action: str, gpu: GpuTarget, effect: str, plan: taint_rules.RulePlan, claims: Sequence[Held]
) -> ServiceResult:
    changed = bool(plan.create or plan.change)
    return ServiceResult(action, gpu.node, gpu.name, gpu.uuid, effect, changed, plan.rules, tuple(claims))


async def _rules(api: KubernetesApi) -> Sequence[DeviceTaintRule]:
    try:
        return (await api.list(DEVICE_TAINT_RULES, Selection(label_selector=cordon.CORDON_LABEL))).items
    except errors.NotFoundError:
        raise ServiceError(
            "this cluster serves no DeviceTaintRules of resource.k8s.io/v1, by which a GPU is taken out of service: "
            "Kubernetes 1.37 or later does"
        ) from None


async def _deleting(api: KubernetesApi, name: str) -> None:
    try:
        await api.delete(DEVICE_TAINT_RULES, name)
    except errors.NotFoundError:
        return


async def _each(work: Sequence[Awaitable[None]]) -> None:
    """Do several things, some at once; the first failure is raised when all have ended."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(job: Awaitable[None]) -> None:
        async with room:
            await job

    results = await asyncio.gather(*map(one, work), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
