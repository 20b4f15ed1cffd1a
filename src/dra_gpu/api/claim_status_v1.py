"""`resource.k8s.io/v1`, `ResourceClaim.status.devices`: what a driver says about the devices it has prepared.

Written by server-side apply, whose body names nothing but the driver's own entries; the UID in it keeps it from a claim
that has replaced the one that is meant. `shareID` is a part of an entry's key and always sent where there is a share.
Source: Kubernetes v1.37, api/resource/v1/types.go `AllocatedDeviceStatus`.
"""

import msgspec

from dra_gpu.api.resource_v1 import API_VERSION

MAX_DATA_BYTES = 10 * 1024
MAX_CONDITIONS = 8


class _Wire(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A camelCase wire object whose unset fields are not sent."""


class Condition(_Wire, frozen=True, omit_defaults=False):
    """One thing that holds or does not (`meta/v1`).

    Attributes:
        type: what it is about, in CamelCase.
        status: `True`, `False` or `Unknown`.
        reason: why, in CamelCase.
        message: why, for a person.
        last_transition_time: RFC 3339, whole seconds; when `status` came to be. Filled in by who writes it.
    """

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str = ""


class AllocatedDeviceStatus(_Wire, frozen=True):
    """The status of one allocated device; driver, pool, device and share id are its key.

    Attributes:
        driver: name of the driver.
        pool: name of the pool.
        device: name of the device in the pool.
        share_id: the share of a shareable device.
        conditions: at most 8.
        data: any JSON object, at most 10 KiB.
    """

    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(name="shareID", default=None)
    conditions: list[Condition] = []
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # msgspec decodes no `Raw | None`


class _Metadata(_Wire, frozen=True):
    name: str
    namespace: str
    uid: str


class _Status(_Wire, frozen=True):
    devices: list[AllocatedDeviceStatus]


class ClaimStatus(_Wire, frozen=True, omit_defaults=False):
    """The body of a server-side apply to `resourceclaims/status`."""

    metadata: _Metadata
    status: _Status
    api_version: str = API_VERSION
    kind: str = "ResourceClaim"


def claim_status(namespace: str, name: str, uid: str, devices: list[AllocatedDeviceStatus]) -> ClaimStatus:
    """Return the body that says `devices` about the claim of that UID."""
    return ClaimStatus(_Metadata(name, namespace, uid), _Status(devices))
