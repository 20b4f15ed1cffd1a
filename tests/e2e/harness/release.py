"""A release of the chart on the test cluster: its pods, what they say, and what is left of it."""

import json
from dataclasses import dataclass

from lab.api import ApiError, path_of
from lab.chart import RELEASE, LabChart
from lab.errors import LabError

from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.objects import Json, claim
from tests.e2e.harness.shell import Shell
from tests.e2e.harness.waiting import PATIENCE, wait_until

NAMESPACE = "dra-gpu"
PODS = path_of("v1", "pods", namespace=NAMESPACE)
CLASSES = path_of("resource.k8s.io/v1", "deviceclasses")
POLICIES = path_of("admissionregistration.k8s.io/v1", "validatingadmissionpolicies")
BINDINGS = path_of("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings")
KINDS = path_of("apiextensions.k8s.io/v1", "customresourcedefinitions")
_RBAC = "rbac.authorization.k8s.io/v1"
#: Where objects of a release are; the kinds are kept.
_COLLECTIONS = (
    CLASSES,
    POLICIES,
    BINDINGS,
    path_of("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"),
    path_of(_RBAC, "clusterroles"),
    path_of(_RBAC, "clusterrolebindings"),
    path_of(_RBAC, "roles", namespace=NAMESPACE),
    path_of(_RBAC, "rolebindings", namespace=NAMESPACE),
    path_of("v1", "serviceaccounts", namespace=NAMESPACE),
    path_of("v1", "services", namespace=NAMESPACE),
    path_of("v1", "configmaps", namespace=NAMESPACE),
    path_of("apps/v1", "daemonsets", namespace=NAMESPACE),
    path_of("apps/v1", "deployments", namespace=NAMESPACE),
    path_of("batch/v1", "jobs", namespace=NAMESPACE),
    path_of("policy/v1", "poddisruptionbudgets", namespace=NAMESPACE),
    path_of("networking.k8s.io/v1", "networkpolicies", namespace=NAMESPACE),
    PODS,
)
_CLAIMS_DRY = f"{path_of('resource.k8s.io/v1', 'resourceclaims', namespace='default')}?dryRun=All"
_SELECTOR = f"app.kubernetes.io/instance={RELEASE}"


def ready(one: Json) -> bool:
    """Whether a pod is Ready and stays."""
    conditions = one["status"].get("conditions") or []
    holds = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return holds and "deletionTimestamp" not in one["metadata"]


def uids(pods: list[Json]) -> set[str]:
    """What tells pods from those that came in their place."""
    return {one["metadata"]["uid"] for one in pods}


@dataclass(frozen=True)
class Release:
    """The release, installed or not."""

    cluster: Cluster
    chart: LabChart

    def shell(self, **values: object) -> Shell:
        """Return an administrator's shell whose `helm` gives the chart this node's values, and these in place of them.

        In commands of documents `NODE` is the test node, and the kubelet's directory its own.
        """
        node = self.cluster.node
        instead = {"NODE": node.name, "/var/lib/kubelet": str(node.kubelet_root)}
        return Shell.of(self.cluster, self.chart.write_helm(**values), instead=instead)

    def state(self) -> str:
        """Return what Helm says of it, as `deployed`; empty where it knows nothing."""
        try:
            found: Json = json.loads(self.chart.helm("status", "--output=json"))
        except LabError:
            return ""
        return str(found["info"]["status"])

    def pods(self, component: str = "") -> list[Json]:
        """Return the pods of one component or all; also those that are ending."""
        selector = f"{_SELECTOR},app.kubernetes.io/component={component}" if component else _SELECTOR
        return self.cluster.api.items(PODS, labelSelector=selector)

    def wait_ready(self, counts: dict[str, int]) -> None:
        """Wait until there are so many pods of each component, all Ready, and API servers reach the webhook.

        A failure tells what the pods say.
        """

        def all_ready() -> bool:
            pods = self.pods()
            return all(map(ready, pods)) and {name: len(self.pods(name)) for name in counts} == counts

        try:
            wait_until("all pods of the release ready", all_ready, 4 * PATIENCE, every=0.3)
            wait_until("the webhook answers", self._webhook_answers, every=0.3)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.story()}") from error

    def _webhook_answers(self) -> bool:
        """Whether a claim could be made; a webhook's pod is Ready before every API server knows where it is."""
        try:
            self.cluster.api.create(_CLAIMS_DRY, claim("anybody"))
        except ApiError:
            return False
        return True

    def story(self) -> str:
        """What the pods of the release say, for a failure's message."""
        found = []
        for one in self.pods():
            name = one["metadata"]["name"]
            try:
                log = self.cluster.api.text(f"{PODS}/{name}/log", tailLines="8")
            except ApiError as error:
                log = str(error)
            found.append(f"{name} {'ready' if ready(one) else 'not ready'}:\n{log}")
        return "\n".join(found)

    def objects(self, ending: str = "") -> list[str]:
        """Return the paths of all objects of the release, or of those whose name has this word in it."""
        return [
            f"{collection}/{one['metadata']['name']}"
            for collection in _COLLECTIONS
            for one in self.cluster.api.items(collection, labelSelector=_SELECTOR)
            if ending in one["metadata"]["name"]
        ]

    def plain(self, collection: str) -> list[str]:
        """Return the paths of what is there of the driver in a collection of the whole cluster, whoever made it."""
        names = [one["metadata"]["name"] for one in self.cluster.api.items(collection)]
        return [f"{collection}/{name}" for name in names if name.endswith(("dra-gpu.dev", "nvidia.com"))]

    def delete_plain(self, *collections: str) -> None:
        """Delete what `deploy/` has made of such kinds: it would be somebody else's to the chart."""
        for collection in collections:
            for path in self.plain(collection):
                self.cluster.api.delete(path)
