"""`kubectl gpu resize`: finds the claim, says what is wanted of it, and follows how far it comes."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dra_gpu.api import claim_resize
from dra_gpu.api.claim_resize import ClaimResize, Phase, Target
from dra_gpu.api.dra_gpu_v1alpha1 import API_VERSION
from dra_gpu.api.resource_v1 import ObjectMeta, ResourceClaim
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.kubernetes_api import KubernetesApi, Selection
from dra_gpu.apiserver.reflector import Change, Reflector
from dra_gpu.apiserver.resources import CLAIM_RESIZES, RESOURCE_CLAIMS, Resource
from dra_gpu.inventory import amounts

DRIVER: Final = "gpu.nvidia.com"


class ResizeError(Exception):
    """It cannot be done, or did not come about; says why, and what to do."""


class _PodClaim(msgspec.Struct, rename="camel", frozen=True):
    """A claim that a pod names, or that was made for it."""

    name: str = ""
    resource_claim_name: str | None = None


class _ExtendedClaim(msgspec.Struct, rename="camel", frozen=True):
    """The claim that stands behind a pod's extended resources."""

    resource_claim_name: str = ""


class _PodSpec(msgspec.Struct, rename="camel", frozen=True):
    """The claims of a pod that have a name of their own."""

    resource_claims: list[_PodClaim] = []


class _PodStatus(msgspec.Struct, rename="camel", frozen=True):
    """The claims that were made for a pod."""

    resource_claim_statuses: list[_PodClaim] = []
    extended_resource_claim_status: _ExtendedClaim | None = None


class _Pod(msgspec.Struct, rename="camel", frozen=True):
    """A pod, as far as its claims go."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


_PODS = Resource("", "v1", "pods", "Pod", namespaced=True, type=_Pod)


@dataclass(frozen=True, slots=True)
class Order:
    """What somebody wants.

    Attributes:
        namespace: of the claim.
        what: `NAME`, `claim/NAME` or `pod/NAME`.
        request: of the claim; None where it has one device.
        changes: fields of the spec that are set; others stay as they are.
        reset: give it back what it was allocated: the ClaimResize is deleted.
    """

    namespace: str
    what: str
    request: str | None
    changes: Mapping[str, object]
    reset: bool = False


@dataclass(slots=True)
class Resizing:
    """One call of the command.

    Attributes:
        api: the API server.
        order: what is wanted.
        tell: takes lines of progress.
    """

    api: KubernetesApi
    order: Order
    tell: Callable[[str], None]

    async def begin(self) -> ClaimResize | None:
        """Write what is wanted; returns the object, or None where there is none to delete.

        Raises:
            ResizeError: there is no such claim, or it has nothing that could be resized.
            ApiError: the API server refused or did not answer.
        """
        claim = await self._claim()
        name, namespace = claim.metadata.name, self.order.namespace
        if self.order.reset:
            return await self._delete(name)
        spec = dict(self.order.changes)
        if self.order.request is not None:
            spec["request"] = self.order.request
        body: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": claim_resize.KIND,
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        try:
            made = await self.api.create(CLAIM_RESIZES, body, namespace)
            self.tell(f"{_shown(name)} created")
        except errors.AlreadyExistsError:
            made = await self.api.patch(CLAIM_RESIZES, {"spec": spec}, name, namespace)
            if made.metadata.deletion_timestamp is not None:
                raise ResizeError(
                    f"{_shown(name)} is being deleted, and what it moved is taken back first: wait until it is gone "
                    f"(kubectl wait --for=delete -n {namespace} {_shown(name)}), then say it again"
                ) from None
            self.tell(f"{_shown(name)} configured")
        except errors.NotFoundError as error:
            raise ResizeError(
                "the cluster does not know ClaimResizes: install the chart, or kubectl apply -f deploy/crds.yaml"
            ) from error
        return made

    async def follow(self, begun: ClaimResize, seconds: float) -> ClaimResize | None:
        """Wait until what is wanted is in force, or the object is gone when that was asked for.

        Raises:
            ResizeError: it was refused, or did not come about in time; says who holds the device if that is why.
        """
        meta = begun.metadata
        heard: asyncio.Queue[ClaimResize | None] = asyncio.Queue()

        def hear(change: Change[ClaimResize]) -> None:
            after = change.after
            heard.put_nowait(after if after is not None and after.metadata.uid == meta.uid else None)

        selection = Selection(namespace=meta.namespace, field_selector=f"metadata.name={meta.name}")
        reflector = Reflector(self.api, CLAIM_RESIZES, selection, on_change=hear)
        watching = asyncio.create_task(reflector.run())
        try:
            async with asyncio.timeout(seconds):
                return await self._follow(begun, heard, reflector)
        except TimeoutError:
            last = reflector.objects.get((meta.namespace, meta.name), begun)
            raise ResizeError(f"after {seconds:g} s: {said(last)}{await self._why(last)}") from None
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _follow(
        self, begun: ClaimResize, heard: "asyncio.Queue[ClaimResize | None]", reflector: Reflector[ClaimResize]
    ) -> ClaimResize | None:
        told = ""
        await reflector.synced.wait()
        if (begun.metadata.namespace, begun.metadata.name) not in reflector.objects:
            heard.put_nowait(None)
        while True:
            resize = await heard.get()
            if resize is None:
                if self.order.reset:
                    return None
                raise ResizeError(f"{_shown(begun.metadata.name)} was deleted meanwhile")
            if not (is_current(resize) or self.order.reset):
                continue
            if said(resize) != told:
                told = said(resize)
                await self._tell(resize)
            if not self.order.reset and has_come(resize):
                return resize

    async def _tell(self, resize: ClaimResize) -> None:
        self.tell(said(resize))
        if resize.status.phase is Phase.INSUFFICIENT_CAPACITY:
            for line in await self._holders(resize.status.target):
                self.tell(line)

    async def _claim(self) -> ResourceClaim:
        kind, slash, name = self.order.what.rpartition("/")
        if kind not in ("", "claim", "pod") or not name:
            raise ResizeError(f"{self.order.what!r} is neither a claim nor a pod: write NAME, claim/NAME or pod/NAME")
        namespace = self.order.namespace
        if kind != "pod":
            try:
                return await self.api.get(RESOURCE_CLAIMS, name, namespace)
            except errors.NotFoundError:
                if slash:
                    raise ResizeError(f"there is no ResourceClaim {namespace}/{name}") from None
        return await self._claim_of_pod(name, claims_too=not slash)

    async def _claim_of_pod(self, name: str, *, claims_too: bool) -> ResourceClaim:
        namespace = self.order.namespace
        try:
            pod = await self.api.get(_PODS, name, namespace)
        except errors.NotFoundError:
            either = "neither a ResourceClaim nor a pod" if claims_too else "no pod"
            raise ResizeError(f"there is {either} {namespace}/{name}") from None
        found = []
        for one in claims_of(pod):
            with suppress(errors.NotFoundError):
                claim = await self.api.get(RESOURCE_CLAIMS, one, namespace)
                if devices_of(claim):
                    found.append(claim)
        if len(found) == 1:
            return found[0]
        if not found:
            raise ResizeError(f"pod {namespace}/{name} has no device of {DRIVER}: is it scheduled?")
        names = ", ".join(f"claim/{one.metadata.name}" for one in found)
        raise ResizeError(f"pod {namespace}/{name} has several claims with GPUs: name one of {names}")

    async def _delete(self, name: str) -> ClaimResize | None:
        namespace = self.order.namespace
        try:
            there = await self.api.get(CLAIM_RESIZES, name, namespace)
            await self.api.delete(CLAIM_RESIZES, name, namespace, uid=there.metadata.uid)
        except errors.NotFoundError:
            self.tell(f"{_shown(name)} is not there: the claim has what it was allocated")
            return None
        self.tell(f"{_shown(name)} deleted: the claim gets what it was allocated")
        return there

    async def _why(self, resize: ClaimResize) -> str:
        if resize.status.phase is not Phase.INSUFFICIENT_CAPACITY:
            return ""
        return "".join(f"\n{line}" for line in await self._holders(resize.status.target))

    async def _holders(self, target: Target | None) -> list[str]:
        """Return who has something of a device, a line each."""
        if target is None:
            return []
        where = ""
        try:
            claims = await self.api.list(RESOURCE_CLAIMS)
        except errors.ForbiddenError:
            claims = await self.api.list(RESOURCE_CLAIMS, Selection(namespace=self.order.namespace))
            where = f" (others than in namespace {self.order.namespace} cannot be seen)"
        return [f"who has something of {target.device}{where}:", *(f"  {line}" for line in held(target, claims.items))]


def claims_of(pod: _Pod) -> list[str]:
    """Return the names of a pod's claims, those made from templates and for extended resources too."""
    named = [one.resource_claim_name for one in (*pod.spec.resource_claims, *pod.status.resource_claim_statuses)]
    extended = pod.status.extended_resource_claim_status
    named += [extended.resource_claim_name] if extended is not None else []
    return list(dict.fromkeys(one for one in named if one))


def devices_of(claim: ResourceClaim) -> list[str]:
    """Return the devices of ours that a claim was allocated."""
    allocation = claim.status.allocation
    results = allocation.devices.results if allocation is not None else []
    return [one.device for one in results if one.driver == DRIVER]


def held(target: Target, claims: tuple[ResourceClaim, ...]) -> list[str]:
    """Return who has something of a device, the largest first."""
    found = []
    for claim in claims:
        allocation = claim.status.allocation
        for one in allocation.devices.results if allocation is not None else ():
            if (one.driver, one.pool, one.device) == (target.driver, target.pool, target.device):
                has = amounts.parse(one.consumed_capacity)
                users = ", ".join(user.name for user in claim.status.reserved_for if user.resource == "pods")
                used = f", used by {users}" if users else ""
                line = f"{claim.metadata.namespace}/{claim.metadata.name}: {has.text()}{used}"
                found.append((-has.memory, -has.compute_percent, line))
    return [line for _, _, line in sorted(found)]


def said(resize: ClaimResize) -> str:
    """Return how far a resize is, in a line."""
    status = resize.status
    return f"{status.phase.value}: {status.message}" if status.message else status.phase.value


def has_come(resize: ClaimResize) -> bool:
    """Tell whether what is wanted is in force.

    Raises:
        ResizeError: it never will be.
    """
    if resize.status.phase is Phase.REFUSED:
        raise ResizeError(said(resize))
    return resize.status.phase is Phase.APPLIED


def is_current(resize: ClaimResize) -> bool:
    """Tell whether the status is about the spec as it is."""
    return resize.status.observed_generation >= resize.metadata.generation


def _shown(name: str) -> str:
    return f"claimresize.{claim_resize.GROUP}/{name}"
