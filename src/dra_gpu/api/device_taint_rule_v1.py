"""`resource.k8s.io/v1` DeviceTaintRule: a taint that an administrator puts on devices (Kubernetes v1.37).

A rule without a selector matches nothing, and one with an empty selector matches every device of the cluster: whatever
is written from here names driver, pool and device. Source: K8s v1.37 k8s.io/api/resource/v1/types.go.
"""

import msgspec

from dra_gpu.api.resource_v1 import API_VERSION, DeviceTaint, ObjectMeta

KIND = "DeviceTaintRule"


class _Wire(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A camelCase wire object whose unset fields are not sent."""


class DeviceTaintSelector(_Wire, frozen=True):
    """Which devices are tainted; what is empty does not narrow it."""

    driver: str = ""
    pool: str = ""
    device: str = ""


class DeviceTaintRuleSpec(_Wire, frozen=True):
    """One taint, and the devices that have it."""

    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint | None = None


class DeviceTaintRule(_Wire, frozen=True):
    """A rule. `api_version` and `kind` are empty in the items of a list; whoever writes a rule sets both."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()


def taint_rule(metadata: ObjectMeta, selector: DeviceTaintSelector, taint: DeviceTaint) -> DeviceTaintRule:
    """Return a rule to be written.

    Raises:
        ValueError: the selector names no driver, pool or device, and so more than one device.
    """
    if not (selector.driver and selector.pool and selector.device):
        raise ValueError(f"the selector of DeviceTaintRule {metadata.name} must name driver, pool and device")
    return DeviceTaintRule(API_VERSION, KIND, metadata, DeviceTaintRuleSpec(selector, taint))
