"""The kinds that the server serves: where they live in the URL, and what they are called in JSON."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServedResource:
    """One line of the table of served kinds."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    has_status: bool = False

    @property
    def api_version(self) -> str:
        """``group/version``, or the bare version for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> str:
        """Unique within one server: ``plural.group`` (or the bare plural for the core group)."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_DRA = ("resource.k8s.io", "v1")

SERVED: tuple[ServedResource, ...] = (
    ServedResource(*_DRA, "resourceslices", "ResourceSlice", namespaced=False),
    ServedResource(*_DRA, "resourceclaims", "ResourceClaim", namespaced=True, has_status=True),
    ServedResource(*_DRA, "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True),
    ServedResource(*_DRA, "deviceclasses", "DeviceClass", namespaced=False),
    ServedResource(*_DRA, "devicetaintrules", "DeviceTaintRule", namespaced=False, has_status=True),
    ServedResource("", "v1", "nodes", "Node", namespaced=False, has_status=True),
    ServedResource("", "v1", "pods", "Pod", namespaced=True, has_status=True),
    ServedResource("", "v1", "events", "Event", namespaced=True),
    ServedResource("", "v1", "namespaces", "Namespace", namespaced=False, has_status=True),
    ServedResource("", "v1", "secrets", "Secret", namespaced=True),
    ServedResource(
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        namespaced=False,
    ),
    ServedResource(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
    ),
    ServedResource("events.k8s.io", "v1", "events", "Event", namespaced=True),
    ServedResource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True),
    ServedResource("resource.dra-gpu.dev", "v1alpha1", "claimresizes", "ClaimResize", namespaced=True, has_status=True),
)


def find_served(group: str, version: str, plural: str) -> ServedResource | None:
    """The line of the table for a URL's three parts; None if the server does not know the kind."""
    for served in SERVED:
        if (served.group, served.version, served.plural) == (group, version, plural):
            return served
    return None


def by_plural(plural: str) -> ServedResource:
    """The first line with this plural; ``KeyError`` names what is served otherwise."""
    for served in SERVED:
        if plural in (served.plural, served.key):
            return served
    known = ", ".join(served.key for served in SERVED)
    raise KeyError(f"no resource {plural!r} is served here; known are: {known}")
