"""Does one step for a resize at the API server, and returns what is known afterwards. Decides nothing.

Each change of an object names the version that was read, or the UID, so that a decision on an old view changes nothing.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec
import structlog

from dra_gpu.api import claim_resize
from dra_gpu.api.claim_resize import FINALIZER, GROWTH_LABEL, ClaimResizeStatus
from dra_gpu.api.dra_gpu_v1alpha1 import API_VERSION
from dra_gpu.api.resource_v1 import ResourceClaimConsumerReference
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.kubernetes_api import KubernetesApi, Selection
from dra_gpu.apiserver.resources import CLAIM_RESIZES, RESOURCE_SLICES, Resource
from dra_gpu.controller.resizes import bodies, objects, steps
from dra_gpu.controller.resizes.objects import CLAIMS, PODS, Claim, Pod
from dra_gpu.controller.resizes.view import View
from dra_gpu.inventory.amounts import Amounts

_REFUSED = (errors.ForbiddenError, errors.InvalidError, errors.BadRequestError)

T = TypeVar("T", Claim, Pod)

_log = structlog.get_logger(__name__)


class OutdatedError(Exception):
    """Somebody else changed an object meanwhile, or this replica does not lead any more: look anew."""


@dataclass(slots=True)
class Changes:
    """Writes.

    Attributes:
        api: the API server.
        image: of placeholder pods.
        may_write: whether this replica leads; asked before each write.
        growths: how many growths were asked for, granted by the scheduler, and not let in by the API server.
    """

    api: KubernetesApi
    image: str
    may_write: Callable[[], bool] = lambda: True
    growths: Counter[str] = field(default_factory=Counter)

    async def do(self, view: View, step: steps.Step) -> View:
        """Do a step; returns the view as it is then.

        Raises:
            OutdatedError: nothing was done.
            ApiError: the API server did not answer, or refused.
        """
        if not self.may_write():
            raise OutdatedError("this replica does not lead any more")
        try:
            return await self._do(view, step)
        except (errors.ConflictError, errors.NotFoundError) as error:
            raise OutdatedError(str(error)) from error

    async def _do(self, view: View, step: steps.Step) -> View:
        match step:
            case steps.Mark(owner_uid):
                return await self._mark(view, owner_uid)
            case steps.Unmark():
                return await self._unmark(view)
            case steps.Write(status, anew):
                return await self._write(view, status, anew=anew)
            case steps.DeleteResize():
                meta = view.resize.metadata
                await self.api.delete(CLAIM_RESIZES, meta.name, meta.namespace, uid=meta.uid)
                raise OutdatedError("deleted")
            case steps.Rest():
                return view
            case _:
                return await self._do_beside(view, step)

    async def _do_beside(self, view: View, step: steps.Beside) -> View:
        """Do a step that is about other objects than the resize."""
        match step:
            case steps.Refresh(name, uid):
                return await self._refresh(view, name, uid)
            case steps.Reserve(claim):
                entries = objects.entries_with(claim, view.name, view.resize.metadata.uid)
                entered = await self._reserved_for(claim, entries)
                self.growths["granted"] += GROWTH_LABEL in claim.metadata.labels
                return _with_claim(view, entered)
            case steps.Unreserve(claim):
                return _with_claim(view, await self._reserved_for(claim, objects.entries_without(claim, view.name)))
            case steps.Ask(name, wanted):
                return await self._ask(view, name, wanted)
            case steps.Carry(growth):
                return await self._carry(view, growth)
            case steps.DeleteGrowth(growth):
                await self._delete(CLAIMS, growth.metadata)
                rest = tuple(one for one in view.growths if one.metadata.uid != growth.metadata.uid)
                return replace(view, growths=rest)
            case steps.DeletePod(pod):
                await self._delete(PODS, pod.metadata)
                return replace(view, pods=tuple(one for one in view.pods if one.metadata.uid != pod.metadata.uid))

    async def _mark(self, view: View, owner_uid: str | None) -> View:
        meta = view.resize.metadata
        changed: dict[str, object] = {"finalizers": [*dict.fromkeys([*meta.finalizers, FINALIZER])]}
        if owner_uid is not None:
            owner = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "name": meta.name, "uid": owner_uid}
            others = [msgspec.to_builtins(one) for one in meta.owner_references]
            changed["ownerReferences"] = [*others, owner]
        return await self._patch(view, {"metadata": changed})

    async def _unmark(self, view: View) -> View:
        rest = [one for one in view.resize.metadata.finalizers if one != FINALIZER]
        left = await self._patch(view, {"metadata": {"finalizers": rest}})
        if view.deleting:
            _log.info("nothing of the resize is left", resize=_named(view))
            raise OutdatedError("gone")
        return left

    async def _patch(self, view: View, body: dict[str, dict[str, object]]) -> View:
        meta = view.resize.metadata
        body.setdefault("metadata", {})["resourceVersion"] = meta.resource_version
        return replace(view, resize=await self.api.patch(CLAIM_RESIZES, body, meta.name, meta.namespace))

    async def _write(self, view: View, status: ClaimResizeStatus, *, anew: bool) -> View:
        meta = view.resize.metadata
        said = msgspec.to_builtins(status)
        del said["node"]
        if anew:
            said["node"] = None
        body = {"metadata": {"resourceVersion": meta.resource_version}, "status": said}
        written = await self.api.patch(CLAIM_RESIZES, body, meta.name, meta.namespace, subresource="status")
        if (status.phase, status.reason) != (view.resize.status.phase, view.resize.status.reason):
            _log.info(
                "a resize has come to another phase",
                resize=_named(view),
                phase=status.phase.value,
                reason=status.reason,
                message=status.message,
            )
        return replace(view, resize=written)

    async def _refresh(self, view: View, name: str, uid: str) -> View:
        others = tuple(one for one in view.growths if one.metadata.uid != uid)
        fresh = view.fresh | {uid}
        try:
            found = await self.api.get(CLAIMS, name, view.resize.metadata.namespace)
        except errors.NotFoundError:
            return replace(view, growths=others, fresh=fresh)
        same = (found,) if found.metadata.uid == uid else ()
        return replace(view, growths=(*others, *same), fresh=fresh)

    async def _reserved_for(self, claim: Claim, entries: list[ResourceClaimConsumerReference]) -> Claim:
        """Write who uses a claim. A claim that nobody uses any more is freed in the same write.

        Kubernetes frees a claim only where it removes the last entry itself, or where the claim is being deleted: one
        that its user keeps would hold its devices for ever. Source: K8s v1.37
        pkg/controller/resourceclaim/controller.go `syncClaim`.
        """
        meta = claim.metadata
        status: dict[str, object] = {"reservedFor": entries}
        if not entries:
            status["allocation"] = None
        body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status}
        return await self.api.patch(CLAIMS, body, meta.name, meta.namespace, subresource="status")

    async def _ask(self, view: View, name: str, wanted: Amounts) -> View:
        target, claim = view.target, view.claim
        assert target is not None
        assert claim is not None
        result = objects.result_of(claim, target)
        assert result is not None
        chosen = Selection(field_selector=f"spec.driver={target.driver},spec.nodeName={target.pool}")
        slices = await self.api.list(RESOURCE_SLICES, chosen)
        try:
            expression = bodies.condition(bodies.device_in(slices.items, target), target.driver)
        except bodies.UnknownDeviceError as error:
            return replace(view, obstacle=str(error))
        asked = bodies.Asked(bodies.device_class(claim, result.request), expression, tuple(result.tolerations))
        body = bodies.claim_body(view.resize, target.claim_uid, name, wanted, asked)
        made = await self._create(view, CLAIMS, body)
        self.growths["refused" if isinstance(made, str) else "asked"] += 1
        return replace(view, obstacle=made) if isinstance(made, str) else replace(view, growths=(*view.growths, made))

    async def _carry(self, view: View, growth: Claim) -> View:
        target, claim = view.target, view.claim
        assert target is not None
        assert claim is not None
        body = bodies.pod_body(view.resize, target.claim_uid, growth, await self._workload(claim), self.image)
        made = await self._create(view, PODS, body)
        self.growths["refused"] += isinstance(made, str)
        return replace(view, obstacle=made) if isinstance(made, str) else replace(view, pods=(*view.pods, made))

    async def _create(self, view: View, resource: Resource[T], body: bodies.Body) -> T | str:
        """Create an object, or find it made before; returns what was refused otherwise."""
        name, namespace = body["metadata"]["name"], view.resize.metadata.namespace
        try:
            return await self.api.create(resource, body, namespace)
        except errors.AlreadyExistsError as error:
            made = await self.api.get(resource, name, namespace)
            # Whatever admits objects may have added labels of its own.
            if made.metadata.labels.get(GROWTH_LABEL) != body["metadata"]["labels"][GROWTH_LABEL]:
                return f"there is a {resource.kind} {namespace}/{name} of somebody else: delete it"
            if made.metadata.deletion_timestamp is not None:
                raise OutdatedError(str(error)) from error
            return made
        except _REFUSED as error:
            _log.warning("a growth was not let in; it is tried again", resize=_named(view), reason=str(error))
            return error.detail or str(error)

    async def _workload(self, claim: Claim) -> Pod | None:
        """Return a pod that uses the claim: its growth is scheduled as that one was."""
        for one in claim.status.reserved_for:
            if one.resource == "pods" and not one.api_group:
                try:
                    pod = await self.api.get(PODS, one.name, claim.metadata.namespace)
                except errors.NotFoundError:
                    continue
                if pod.metadata.uid == one.uid:
                    return pod
        return None

    async def _delete(self, resource: Resource[T], meta: objects.Meta) -> None:
        try:
            await self.api.delete(resource, meta.name, meta.namespace, uid=meta.uid)
        except errors.NotFoundError:
            return

    async def restore(self, namespace: str, name: str, request: str | None) -> None:
        """Make a ClaimResize again that vanished while something was kept for it, and delete it: so it undoes that."""
        if not self.may_write():
            return
        body = {
            "apiVersion": API_VERSION,
            "kind": claim_resize.KIND,
            "metadata": {"name": name, "namespace": namespace, "finalizers": [FINALIZER]},
            "spec": {"request": request} if request else {},
        }
        try:
            made = await self.api.create(CLAIM_RESIZES, body, namespace)
        except errors.AlreadyExistsError:
            return  # the watch will tell
        await self.api.delete(CLAIM_RESIZES, name, namespace, uid=made.metadata.uid)
        _log.warning(
            "a ClaimResize vanished while something was kept for it: made again, to take that back",
            resize=f"{namespace}/{name}",
        )


def _with_claim(view: View, claim: Claim) -> View:
    uid = claim.metadata.uid
    if view.claim is not None and view.claim.metadata.uid == uid:
        return replace(view, claim=claim)
    others = tuple(one for one in view.growths if one.metadata.uid != uid)
    return replace(view, growths=(*others, claim), fresh=view.fresh | {uid})


def _named(view: View) -> str:
    return f"{view.resize.metadata.namespace}/{view.name}"
