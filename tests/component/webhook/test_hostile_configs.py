"""Mutated configs through the decoder, the webhook and the plan of a claim: none breaks, none fools one of them.

A hundred thousand with HOSTILE_CONFIGS=100000; fewer by default.
"""

import json
import os
import random

import msgspec
import pytest

from dra_gpu.api import opaque, strict
from dra_gpu.api.config_error import InvalidConfigError
from dra_gpu.api.resource_v1 import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    OpaqueDeviceConfiguration,
)
from dra_gpu.claims.enforcement import Surroundings
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.plan import Plan, make_plan
from dra_gpu.inventory.model import View
from dra_gpu.inventory.options import ViewOptions
from dra_gpu.inventory.sharing import MpsProtocol, SharingAbility
from dra_gpu.webhook import admission, answers, reading
from tests.component.webhook import hostile
from tests.unit.inventory import boards
from tests.unit.inventory.boards import H100
from tests.unit.inventory.published import EVERY, layout
from tests.unit.validation.manifests import claim, request
from tests.unit.webhook.questions import review

CONFIGS = int(os.environ.get("HOSTILE_CONFIGS", "20000"))
PARTS = 4
DRIVER, POOL, UID = "gpu.nvidia.com", "node-1", "7a3c6f10-58f1-4b8e-9a3e-0d5b2b0c1d2e"
LAYOUT = layout(
    boards.partitionable(H100, 0),
    options=ViewOptions(EVERY, mig_profiles=("3g.40gb",), shared_mig_profiles=("3g.40gb",)),
)
AROUND = Surroundings(lambda device: SharingAbility(MpsProtocol.CLASSIC if device.placement else MpsProtocol.NAMESPACE))
VIEW_OF = {"GpuConfig": View.GPU, "MigDeviceConfig": View.MIG, "SharedGpuConfig": View.SHARED}
CLASS_OF = {View.GPU: "gpu.nvidia.com", View.MIG: "mig.nvidia.com", View.SHARED: "shared.gpu.nvidia.com"}
DEVICE_OF = {view: next(one for one in LAYOUT.inventory.devices.values() if one.view is view) for view in CLASS_OF}
BODY = {
    (version, view, named): json.dumps(
        review(
            claim(
                request("r", cls),
                configs=[
                    ({"requests": ["r"]} if named else {}) | {"opaque": {"driver": "DRIVER", "parameters": "HERE"}}
                ],
                version=version,
            )
        )
    ).encode()
    for version in ("v1", "v1beta2", "v1beta1")
    for view, cls in CLASS_OF.items()
    for named in (False, True)
}
# What depends on the GPU that a claim gets, which nobody knows before.
ONLY_THE_NODE_KNOWS = ("write at most that", "could lift", "['GPU-1'] names")


def admitted(body, driver, text):
    """Tell whether the webhook lets a claim with that config in; what is no JSON never gets there."""
    try:
        question = reading.read(body.replace(b'"HERE"', text).replace(b"DRIVER", driver.encode()))
    except reading.UnreadableReviewError:
        return False
    assert admission.is_ours(question)
    given = answers.of_problems(question.request, admission.problems(question))
    assert len(msgspec.json.encode(given)) < 64 * 1024
    return given.allowed


def decoded(driver, text):
    try:
        return opaque.read(driver, strict.load(text))
    except InvalidConfigError:
        return None


def planned(view, text, *, named):
    """Return what the node makes of an allocation with that config."""
    device = DEVICE_OF[view]
    share = {"share_id": UID, "consumed_capacity": {"computePercent": "20", "memory": "10Gi", "clients": "1"}}
    result = DeviceRequestAllocationResult("r", DRIVER, POOL, device.name, **(share if view is View.SHARED else {}))
    config = DeviceAllocationConfiguration(
        "FromClaim", ["r"] if named else [], OpaqueDeviceConfiguration(DRIVER, msgspec.Raw(text))
    )
    return make_plan(
        ClaimRef("team", "c", UID),
        AllocationResult(DeviceAllocationResult([result], [config])),
        driver=DRIVER,
        pool=POOL,
        inventory=LAYOUT.inventory,
        around=AROUND,
    )


def is_json(text):
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


@pytest.mark.parametrize("part", range(PARTS))
def test_webhook_and_node_agree_about_every_mutated_config(part):
    rng = random.Random(part)
    taken = refused = 0

    for _ in range(CONFIGS // PARTS):
        driver, kind, text = hostile.config(rng)
        config = decoded(driver, text)
        if not is_json(text):
            assert config is None
            refused += 1
            continue
        view = VIEW_OF.get(kind, rng.choice(list(CLASS_OF)))
        named = driver == DRIVER and rng.random() < 0.5
        allowed = admitted(BODY[rng.choice(["v1", "v1beta2", "v1beta1"]), view, named], driver, text)
        assert config is not None or not allowed, (driver, text)
        if driver != DRIVER:
            assert allowed is (config is not None), (driver, text)
            continue
        outcome = planned(view, text, named=named)
        prepared = isinstance(outcome, Plan)
        assert prepared is allowed or (allowed and any(words in outcome.message for words in ONLY_THE_NODE_KNOWS)), (
            view,
            named,
            text,
            outcome,
        )
        taken += prepared
        refused += not prepared

    assert min(taken, refused) > CONFIGS // PARTS // 20
