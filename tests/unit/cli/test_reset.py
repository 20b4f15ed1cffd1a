"""What a reset asks of a cluster, in which order, and what is left when it is refused."""

from dataclasses import replace

import msgspec
import pytest

from dra_gpu.api import cordon
from dra_gpu.api.cordon import ResetAnswer
from dra_gpu.api.device_taint_rule_v1 import DeviceTaintRule
from dra_gpu.api.resource_v1 import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    DeviceToleration,
    ObjectMeta,
    ResourceClaimConsumerReference,
)
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.kubernetes_api import Listing
from dra_gpu.apiserver.resources import Event
from dra_gpu.cli import cordoning, listing, reset
from dra_gpu.cli.cordoning import Service, ServiceError, cordon_gpu, drain_gpu, uncordon_gpu
from dra_gpu.cli.gpu_target import find, published
from dra_gpu.cli.listing import DRIVER
from dra_gpu.cli.reset import reset_gpu
from dra_gpu.cli.service_output import as_text
from tests.unit.cli.published import slices_of
from tests.unit.inventory.builders import gpu

TOLERATES = DeviceToleration(operator="Exists", effect="NoExecute")


def claim(name, *tolerations):
    result = DeviceRequestAllocationResult("r", DRIVER, "node-a", "gpu-0", tolerations=list(tolerations))
    return listing.Claim(
        metadata=ObjectMeta(name=name, namespace="team", uid=f"uid-{name}"),
        status=listing._Status(
            allocation=AllocationResult(devices=DeviceAllocationResult(results=[result])),
            reserved_for=[ResourceClaimConsumerReference("pods", f"pod-of-{name}", "uid")],
        ),
    )


class Cluster:
    """An API server whose node answers as `answers` says, and whose claims end as soon as they are waited for."""

    def __init__(self, *claims, answers=(True,), keep=()):
        self.claims = {one.metadata.name: one for one in claims}
        self.rules: dict[str, DeviceTaintRule] = {}
        self.requests, self.deleted_pods, self.told, self.called_well = [], [], [], []
        self.answers, self.keep, self.overwritten = list(answers), keep, ""
        self.events = ()

    async def list(self, resource, _selection=None, **_):
        found = {"devicetaintrules": self.rules.values(), "resourceclaims": self.claims.values(), "events": self.events}
        return Listing(tuple(found[resource.plural]), "1")

    async def get(self, resource, name, _namespace="", **_):
        if resource.plural == "resourceclaims" and name not in self.keep:
            self.claims.pop(name, None)
        found = self.claims if resource.plural == "resourceclaims" else self.rules
        if name not in found:
            raise errors.NotFoundError("get", str(resource), name)
        return found[name]

    async def create(self, _resource, rule, **_):
        self.rules[rule.metadata.name] = rule
        return rule

    async def patch(self, resource, body, name, **_):
        if resource.plural == "nodes":
            self.called_well.append((name, body["metadata"]["annotations"][cordon.CLEAR_ANNOTATION]))
            return None
        request = body["metadata"].get("labels", {}).get(cordon.RESET_LABEL)
        self.requests.append(request)
        labels = {cordon.CORDON_LABEL: "true"} | ({cordon.RESET_LABEL: self.overwritten or request} if request else {})
        metadata = msgspec.structs.replace(self.rules[name].metadata, labels=labels)
        self.rules[name] = msgspec.structs.replace(self.rules[name], metadata=metadata)
        if request and self.answers:
            answer = ResetAnswer(request, done=self.answers.pop(0), text="pid 4711 (dcgm) has it open")
            self.events = (Event(reason=answer.reason, message=answer.note),)
        return self.rules[name]

    async def delete(self, resource, name, _namespace="", **_):
        if resource.plural == "pods":
            self.deleted_pods.append(name)
        else:
            del self.rules[name]

    def service(self):
        target = find(published(slices_of(gpu(0), gpu(1))), "node-a", "gpu-0")
        return Service(self, target, tuple(self.rules.values()))

    async def reset(self, *, force=False, keep=False):
        return await reset_gpu(self.service(), force=force, keep=keep, seconds=0.0, tell=self.told.append)


async def test_a_reset_drains_waits_asks_the_node_and_gives_back():
    cluster = Cluster(claim("job"))

    result = await cluster.reset()

    assert [one.shown for one in result.claims] == ["team/job"]
    assert len(cluster.requests) == 1
    assert cordon.is_reset_id(cluster.requests[0])
    assert cluster.rules == {}
    assert cluster.deleted_pods == []


async def test_pods_that_tolerate_the_drain_are_named_before_anything_is_written():
    cluster = Cluster(claim("stubborn", TOLERATES))

    with pytest.raises(ServiceError, match=r"team/stubborn put up with being drained: .*--force-drain"):
        await cluster.reset()

    assert (cluster.rules, cluster.requests) == ({}, [])


async def test_by_force_the_pods_are_deleted():
    cluster = Cluster(claim("stubborn", TOLERATES), claim("job"))

    await cluster.reset(force=True)

    assert sorted(cluster.deleted_pods) == ["pod-of-job", "pod-of-stubborn"]


async def test_a_claim_that_stays_is_named_and_the_node_is_not_asked():
    cluster = Cluster(claim("slow"), keep=("slow",))

    with pytest.raises(ServiceError, match=r"team/slow still has it .*It stays drained: `kubectl gpu uncordon"):
        await cluster.reset()

    assert cluster.requests == []
    assert len(cluster.rules) == 2


async def test_a_refusal_of_the_node_is_told_in_its_words_and_the_request_is_taken_back():
    cluster = Cluster(answers=[False])

    with pytest.raises(ServiceError, match=r"was not reset: pid 4711 \(dcgm\) has it open\. It stays drained"):
        await cluster.reset()

    assert cluster.requests[-1] is None
    assert len(cluster.rules) == 2


async def test_a_node_that_does_not_answer_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(reset, "ANSWER_SECONDS", 0.0)
    cluster = Cluster(answers=[])

    with pytest.raises(ServiceError, match="has not answered within"):
        await cluster.reset()

    assert cluster.requests[-1] is None


async def test_of_two_who_ask_at_once_the_one_whose_request_is_gone_is_told_and_leaves_the_other_alone():
    cluster = Cluster(answers=[])
    cluster.overwritten = "of-somebody-else"

    with pytest.raises(ServiceError, match="somebody else has asked for another reset"):
        await cluster.reset()

    assert None not in cluster.requests


async def test_a_gpu_can_be_kept_drained_afterwards():
    cluster = Cluster()

    result = await cluster.reset(keep=True)

    assert len(result.rules) == len(cluster.rules) == 2
    assert cluster.requests[-1] is None
    assert as_text(result).endswith("; it stays drained")


async def test_a_drain_says_whose_pods_go_and_whose_stay():
    later = msgspec.structs.replace(TOLERATES, toleration_seconds=30)
    cluster = Cluster(claim("a"), claim("b", TOLERATES), claim("c", later))

    text = as_text(await drain_gpu(cluster.service()))

    assert "drained (2 DeviceTaintRules)" in text
    assert [line.split("  ")[-1].strip() for line in text.splitlines()[2:]] == [
        "evicted",
        "staying: a toleration says so",
        "evicted after 30 s: a toleration says so",
    ]


async def test_what_is_not_cordoned_is_uncordoned_without_a_fuss():
    result = await uncordon_gpu(Cluster().service())

    assert not result.changed
    assert as_text(result).endswith("was not cordoned")


async def test_a_gpu_can_be_called_well_again_and_again():
    cluster = Cluster()

    first = await uncordon_gpu(cluster.service(), well=True)
    await uncordon_gpu(cluster.service(), well=True)

    assert first.changed
    assert [(node, value.split(",")[0]) for node, value in cluster.called_well] == [("node-a", gpu(0).uuid)] * 2
    assert len({value for _, value in cluster.called_well}) == 2  # the node acts on each value once


async def test_a_cluster_without_these_rules_is_told_what_it_lacks():
    class Old(Cluster):
        async def list(self, resource, _selection=None, **_):
            raise errors.NotFoundError("list", str(resource))

    with pytest.raises(ServiceError, match=r"Kubernetes 1\.37 or later"):
        await cordoning._rules(Old())


class BusyCluster(Cluster):
    """A cluster whose scheduler gives the GPU to somebody while it is being drained."""

    def __init__(self, *claims, late, **more):
        super().__init__(*claims, **more)
        self.late = list(late)

    async def create(self, resource, rule, **more):
        if self.late:
            found = self.late.pop()
            self.claims[found.metadata.name] = found
        return await super().create(resource, rule, **more)


async def test_who_got_the_gpu_while_it_was_being_drained_is_waited_for_as_well():
    cluster = BusyCluster(claim("job"), late=[claim("late")])

    result = await reset_gpu(cluster.service(), force=True, keep=False, seconds=30.0, tell=cluster.told.append)

    assert [one.shown for one in result.claims] == ["team/job", "team/late"]
    assert cluster.deleted_pods == ["pod-of-job", "pod-of-late"]
    assert len(cluster.requests) == 1


async def test_who_got_the_gpu_meanwhile_and_stays_is_named_and_the_node_is_not_asked():
    cluster = BusyCluster(late=[claim("late", TOLERATES)], keep=("late",))

    with pytest.raises(ServiceError, match=r"team/late still has it .*It stays drained: `kubectl gpu uncordon"):
        await cluster.reset()

    assert cluster.requests == []


async def test_a_drain_tells_of_those_who_came_while_it_was_written_and_of_those_who_have_gone_since():
    cluster = BusyCluster(claim("job"), late=[claim("late")])

    result = await drain_gpu(cluster.service())

    assert [one.shown for one in result.claims] == ["team/job", "team/late"]


async def test_a_gpu_of_which_nothing_can_be_taken_out_of_service_is_not_said_to_be_cordoned():
    cluster = Cluster()
    service = cluster.service()
    service.gpu = replace(service.gpu, devices={"gpu-0-monitor": "monitor"})

    with pytest.raises(ServiceError, match="no device of it is published that could be taken out of service"):
        await cordon_gpu(service)


async def test_a_wait_for_no_number_of_seconds_is_none():
    cluster = Cluster(claim("slow"), keep=("slow",))
    service = cluster.service()

    assert [one.shown for one in await service.wait_free(await service.held(), float("nan"))] == ["team/slow"]


class StrictCluster(Cluster):
    """An API server that does not let this user do everything."""

    def __init__(self, *claims, forbidden, **more):
        super().__init__(*claims, **more)
        self.forbidden = forbidden

    def check(self, verb, resource):
        if (verb, resource.plural) == self.forbidden:
            raise errors.ForbiddenError(verb, str(resource), status=403, detail='User "eve" cannot do that')

    async def list(self, resource, *more, **named):
        self.check("list", resource)
        return await super().list(resource, *more, **named)

    async def patch(self, resource, *more, **named):
        self.check("patch", resource)
        return await super().patch(resource, *more, **named)

    async def delete(self, resource, *more, **named):
        self.check("delete", resource)
        return await super().delete(resource, *more, **named)


@pytest.mark.parametrize("forbidden", [("list", "events"), ("delete", "pods"), ("patch", "devicetaintrules")])
async def test_who_may_not_do_a_step_is_told_which_and_how_the_gpu_is_left(forbidden):
    cluster = StrictCluster(claim("job"), forbidden=forbidden)

    with pytest.raises(
        ServiceError, match=r'not reset: .*User "eve" .*ask who administers .*It stays drained: `kubectl gpu uncordon'
    ):
        await cluster.reset(force=True)

    assert len(cluster.rules) == 2
    assert not any(cordon.RESET_LABEL in rule.metadata.labels for rule in cluster.rules.values())


async def test_who_may_not_give_back_is_told_that_the_gpu_was_reset():
    cluster = StrictCluster(forbidden=("delete", "devicetaintrules"))

    with pytest.raises(ServiceError, match=r"was reset and not given back: .*It stays drained"):
        await cluster.reset()
