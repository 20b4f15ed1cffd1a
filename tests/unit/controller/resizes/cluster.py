"""A cluster as far as a resize sees one: an API server whose every call is a point at which anything else may happen.

It keeps to what the real one does: versions, finalizers, the status as a part of its own, and no new user of a claim
that is being deleted. Beside it a scheduler and the controller of claims, one step at a time.
"""

import copy
import itertools

import msgspec

from dra_gpu.api.claim_resize import GROUP, GROWTH_LABEL
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.kubernetes_api import Listing
from dra_gpu.apiserver.resources import RESOURCE_SLICES
from dra_gpu.inventory import amounts
from dra_gpu.inventory.amounts import Amounts

NAMESPACE, NODE, DEVICE = "team-a", "node-0", "gpu-0-shared"
GIBI = 2**30
HARDWARE = Amounts(100, 100 * GIBI, 48, 0)


class Point:
    """Where a call has not reached the server yet."""

    def __await__(self):
        yield self


class Cluster:
    """The objects, by plural and name, all of one namespace."""

    def __init__(self):
        self.objects: dict[tuple[str, str], dict] = {}
        self.numbers = itertools.count(1)
        self.published = HARDWARE
        self.refused = ""
        self.history: list[dict] = []  # every version of the resize

    # As the driver sees it: a KubernetesApi

    async def get(self, resource, name, *_, **__):
        await Point()
        return self._typed(resource, self._found(resource, name))

    async def list(self, resource, *_, **__):
        await Point()
        if resource is RESOURCE_SLICES:
            return Listing((msgspec.convert(self.a_slice(), RESOURCE_SLICES.type),), "1")
        found = [one for (plural, _), one in self.objects.items() if plural == resource.plural]
        return Listing(tuple(self._typed(resource, one) for one in found), "1")

    async def create(self, resource, body, *_, **__):
        await Point()
        if self.refused and resource.plural != "claimresizes":
            raise errors.ForbiddenError("create", str(resource), status=403, detail=self.refused)
        return self._typed(resource, self.put(resource.plural, msgspec.to_builtins(body)))

    async def patch(self, resource, body, name, *_, subresource="", **__):
        await Point()
        one, change = self._found(resource, name), msgspec.to_builtins(body)
        meta = change.get("metadata", {})
        for key in ("resourceVersion", "uid"):
            if key in meta and meta.pop(key) != one["metadata"][key]:
                raise errors.ConflictError("patch", str(resource), name, status=409)
        before = copy.deepcopy(one)
        if subresource == "status":
            self._check_users(one, change["status"])
            one["status"] = merged(one.get("status", {}), change["status"])
        else:
            assert "status" not in change
            one = self.objects[resource.plural, name] = merged(one, change)
        return self._typed(resource, self._stored(resource.plural, one, before))

    async def delete(self, resource, name, *_, uid="", **__):
        await Point()
        one = self._found(resource, name)
        if uid and one["metadata"]["uid"] != uid:
            raise errors.ConflictError("delete", str(resource), name, status=409)
        self.remove(resource.plural, name)

    # As the world changes it

    def put(self, plural, one):
        """Create."""
        key = plural, one["metadata"]["name"]
        if key in self.objects:
            raise errors.AlreadyExistsError("create", plural, key[1], status=409)
        one = copy.deepcopy(one)
        one["metadata"] |= {"uid": f"{plural}-{next(self.numbers)}", "generation": 1, "namespace": NAMESPACE}
        self.objects[key] = one
        return self._stored(plural, one, None)

    def remove(self, plural, name):
        """Delete, as far as finalizers and allocations let it."""
        one = self.objects[plural, name]
        kept = one["metadata"].get("finalizers") or one.get("status", {}).get("allocation")
        if kept:
            if "deletionTimestamp" not in one["metadata"]:
                one["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                one["metadata"]["generation"] += 1
                self._stored(plural, one, None)
        else:
            self._forget(plural, name)

    def force_out(self, name):
        """Take a resize's finalizer off by hand and delete it."""
        self.objects["claimresizes", name]["metadata"]["finalizers"] = []
        self.remove("claimresizes", name)

    def wish(self, name, capacity):
        """Write a spec."""
        one = self.objects["claimresizes", name]
        before = copy.deepcopy(one)
        one["spec"] = {"capacity": capacity}
        self._stored("claimresizes", one, before)

    def allocate(self, name, capacity, users, share="share"):
        """Have a claim allocated a share of the device."""
        one = self.objects["resourceclaims", name]
        result = {
            "request": one["spec"]["devices"]["requests"][0]["name"],
            "driver": "gpu.nvidia.com",
            "pool": NODE,
            "device": DEVICE,
            "shareID": share,
            "consumedCapacity": capacity.wire(),
        }
        one["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}
        self._stored("resourceclaims", one, None)

    def a_slice(self):
        capacity = {name: {"value": amount} for name, amount in self.published.wire().items()}
        device = {"name": DEVICE, "attributes": {"uuid": {"string": "GPU-0"}}, "capacity": capacity}
        return {"spec": {"driver": "gpu.nvidia.com", "pool": {"name": NODE}, "nodeName": NODE, "devices": [device]}}

    def taken(self):
        """What claims were allocated of the device."""
        return sum((self.allocated(name) for plural, name in self.objects if plural == "resourceclaims"), Amounts())

    def allocated(self, name):
        found = self.objects.get(("resourceclaims", name), {}).get("status", {}).get("allocation")
        return amounts.parse(found["devices"]["results"][0]["consumedCapacity"]) if found else Amounts()

    def growths(self):
        """Names of the claims that stand in for growths."""
        return [
            name
            for (plural, name), one in self.objects.items()
            if plural == "resourceclaims" and GROWTH_LABEL in one["metadata"].get("labels", {})
        ]

    def schedule(self):
        """The scheduler looks at every pod that waits."""
        for (plural, name), pod in list(self.objects.items()):
            if plural != "pods" or pod["spec"].get("nodeName") or "resourceClaims" not in pod["spec"]:
                continue
            claim = self.objects.get(("resourceclaims", name))
            if claim is None or "deletionTimestamp" in claim["metadata"]:
                continue
            user = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
            if claim.get("status", {}).get("allocation"):
                continue
            wanted = amounts.parse(claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"])
            before = copy.deepcopy(pod)
            if (self.taken() + wanted).within(self.published):
                self.allocate(name, wanted, [user], share=f"share-{name}")
                pod["spec"]["nodeName"] = NODE
                pod["status"] = {}
            else:
                no = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
                pod["status"] = {"conditions": [no]}
            self._stored("pods", pod, before)

    def tidy(self):
        """The controller of claims, and the garbage collector, look at everything once."""
        uids = {one["metadata"]["uid"] for one in self.objects.values()}
        for (plural, name), one in list(self.objects.items()):
            owners = one["metadata"].get("ownerReferences", [])
            if owners and not any(owner["uid"] in uids for owner in owners):
                self.remove(plural, name)
        for (plural, name), one in list(self.objects.items()):
            if plural != "resourceclaims":
                continue
            users, ending = one.get("status", {}).get("reservedFor", []), "deletionTimestamp" in one["metadata"]
            left = [user for user in users if user.get("apiGroup") or user["uid"] in uids]
            if left != users or (ending and not left):
                one["status"] = one["status"] | {"reservedFor": left} if left else {}
                self._stored(plural, one, None)
            if ending and not one["status"]:
                self._forget(plural, name)

    def typed(self, resource):
        """All objects of a kind, as a list has them."""
        found = [one for (plural, _), one in self.objects.items() if plural == resource.plural]
        return tuple(self._typed(resource, one) for one in found)

    def _found(self, resource, name):
        try:
            return self.objects[resource.plural, name]
        except KeyError:
            raise errors.NotFoundError("get", str(resource), name, status=404) from None

    @staticmethod
    def _typed(resource, one):
        return msgspec.convert(copy.deepcopy(one), resource.type)

    def _check_users(self, one, status):
        if one["kind"] != "ResourceClaim" or "reservedFor" not in status:
            return
        had = {user["uid"] for user in one.get("status", {}).get("reservedFor", [])}
        more = {user["uid"] for user in status["reservedFor"]} - had
        if not one.get("status", {}).get("allocation") or (more and "deletionTimestamp" in one["metadata"]):
            raise errors.InvalidError("patch", "resourceclaims", status=422, detail="no new users")

    def _stored(self, plural, one, before):
        if before is not None and before.get("spec") != one.get("spec"):
            one["metadata"]["generation"] += 1
        if before is None or before != one:
            one["metadata"]["resourceVersion"] = str(next(self.numbers))
            if plural == "claimresizes":
                self.history.append(copy.deepcopy(one))
        ending = "deletionTimestamp" in one["metadata"] and not one["metadata"].get("finalizers")
        if ending and plural == "claimresizes":
            self._forget(plural, one["metadata"]["name"])
        return one

    def _forget(self, plural, name):
        gone = self.objects.pop((plural, name))
        if plural == "claimresizes":
            self.history.append({"metadata": gone["metadata"], "gone": True})


def merged(one, change):
    """Apply a JSON merge patch."""
    found = dict(one)
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict) and isinstance(found.get(key), dict):
            found[key] = merged(found[key], value)
        else:
            found[key] = merged({}, value) if isinstance(value, dict) else value
    return found


def a_claim(name):
    request = {"name": "gpu", "exactly": {"deviceClassName": "shared.gpu.nvidia.com"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }


def a_pod(name):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": NODE}}


def a_resize(name, capacity):
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "ClaimResize",
        "metadata": {"name": name},
        "spec": {"capacity": capacity},
    }
