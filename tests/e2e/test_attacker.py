"""Somebody has broken into a node and has the token of its plugin: what of the cluster that token does not reach.

The victim is another node with a pod, a claim, slices and Events of its own, and everything that belongs to nobody's
node. Each attempt is refused by the API server, and what it was aimed at is as before.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from lab.api import Api, ApiError, Json, path_of
from lab.identity import NAMESPACE, SERVICE_ACCOUNT, node_token

from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import claim
from tests.e2e.harness.slices import SLICES
from tests.e2e.harness.waiting import wait_until
from tests.e2e.test_rights import a_slice

VICTIM = "victim"
NODES = "/api/v1/nodes"
RBAC, ADMISSION = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
POLICY = "node-slices.dra-gpu.dev"
RESIZES = "resource.dra-gpu.dev/v1alpha1"
SYSTEM_LEASES = path_of("coordination.k8s.io/v1", "leases", namespace="kube-system")
NODE_LEASES = path_of("coordination.k8s.io/v1", "leases", namespace="kube-node-lease")
pytestmark = pytest.mark.budget(5)


@dataclass(frozen=True)
class Impersonating(Api):
    """A client that says it is somebody else."""

    user: str = ""
    group: str = ""

    def _headers(self) -> dict[str, str]:
        groups = {"Impersonate-Group": self.group} if self.group else {}
        return super()._headers() | {"Impersonate-User": self.user} | groups


@dataclass(frozen=True)
class Scene:
    """The attacker, and where the victim's things lie."""

    cluster: Cluster
    attacker: Api
    namespace: str

    @property
    def admin(self) -> Api:
        """A client with all rights."""
        return self.cluster.api

    @property
    def home(self) -> str:
        """The node that was broken into."""
        return self.cluster.node.name

    def path(self, resource: str, name: str = "", subresource: str = "", group: str = "v1") -> str:
        """Where something in the victim's namespace lies."""
        return path_of(group, resource, name, namespace=self.namespace, subresource=subresource)

    def claims(self, name: str = "", subresource: str = "") -> str:
        """Where the victim's claims lie."""
        return self.path("resourceclaims", name, subresource, "resource.k8s.io/v1")

    def resizes(self, name: str = "", subresource: str = "") -> str:
        """Where the victim's ClaimResizes lie."""
        return self.path("claimresizes", name, subresource, RESIZES)

    def belongings(self) -> dict[str, Json]:
        """What stands in everything that is the victim's: equal before and after means that nobody touched it.

        Left out is what the cluster itself writes to a node without a kubelet: the Node, and the pod's status.
        """
        paths = [f"{SLICES}/{name}" for name in ("victims", "victims-nic")]
        paths += [self.claims("held"), self.claims("held-here"), self.path("secrets", "password")]
        paths += [self.path("pods", "job"), self.path("configmaps", "settings"), self.path("events", "told")]
        paths += [f"{NODE_LEASES}/{VICTIM}", path_of(RBAC, "clusterroles", "dra-gpu-node")]
        paths += [path_of(ADMISSION, "validatingadmissionpolicies", POLICY)]
        found = {path: self.admin.get(path) for path in paths}
        for path, one in found.items():
            for volatile in ("managedFields", "resourceVersion"):
                one["metadata"].pop(volatile, None)
            if "/pods/" in path or "/validatingadmissionpolicies/" in path:
                one.pop("status", None)
        return found


def of_kind(group_version: str, kind: str, name: str, **fields: object) -> Json:
    """An object of any kind."""
    return {"apiVersion": group_version, "kind": kind, "metadata": {"name": name}, **fields}


def a_pod(name: str, node_name: str) -> Json:
    """A pod on a node."""
    containers = [{"name": "main", "image": "none.invalid/none"}]
    return of_kind("v1", "Pod", name, spec={"nodeName": node_name, "containers": containers})


def an_event(
    about: Json, *, name: str = "said", component: str = "dra-gpu.dev/node", host: str = "", namespace: str = ""
) -> Json:
    """An Event about an object, by a component on a node."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": about,
        "type": "Warning",
        "reason": "Rebooted",
        "message": "all pods have to go",
        "source": {"component": component, "host": host},
        "reportingComponent": component,
        "reportingInstance": host,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
    }


def allocated_on(node_name: str, pod_uid: str) -> Json:
    """The status of a claim whose device is on a node and used by the victim's pod."""
    here = {"key": "metadata.name", "operator": "In", "values": [node_name]}
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node_name, "device": "gpu-0"}
    selector = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": selector}
    return {"status": {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "job", "uid": pod_uid}]}}


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    """The victim's things, and a client with the token of the other node's plugin."""
    api = cluster.api
    with ExitStack() as stack:
        namespace = TestNamespace(api, f"e2e-{secrets.token_hex(4)}")
        api.create("/api/v1/namespaces", of_kind("v1", "Namespace", namespace.name))
        stack.callback(namespace.clean)
        made = Scene(cluster, cluster.api_with(node_token(api, cluster.node)), namespace.name)
        account = made.path("serviceaccounts", "default")
        wait_until("service account of the victim", lambda: api.exists(account))

        def put(collection: str, body: Json) -> None:
            path = f"{collection}/{body['metadata']['name']}"
            api.delete(path, grace_seconds=0)  # what a run that was killed has left in a cluster that is kept
            api.create(collection, body)
            stack.callback(api.delete, path, grace_seconds=0)

        put(NODES, of_kind("v1", "Node", VICTIM, spec={"unschedulable": True}))
        put(SLICES, a_slice("victims", VICTIM))
        put(SLICES, a_slice("victims-nic", cluster.node.name, driver="nic.example.com"))
        put(NODE_LEASES, of_kind("coordination.k8s.io/v1", "Lease", VICTIM, spec={"holderIdentity": VICTIM}))
        put(made.path("secrets"), of_kind("v1", "Secret", "password", stringData={"password": "hunter2"}))
        put(made.path("configmaps"), of_kind("v1", "ConfigMap", "settings", data={"mode": "safe"}))
        put(made.path("pods"), a_pod("job", VICTIM))
        pod_uid = api.get(made.path("pods", "job"))["metadata"]["uid"]
        about = {"apiVersion": "v1", "kind": "Pod", "name": "job", "namespace": namespace.name}
        put(
            made.path("events"),
            an_event(about, name="told", component="kubelet", host=VICTIM, namespace=namespace.name),
        )
        for name, node_name in (("held", VICTIM), ("held-here", cluster.node.name)):
            put(made.claims(), claim(name))
            api.patch(made.claims(name, "status"), allocated_on(node_name, pod_uid))
        for name, node_name in (("moved", VICTIM), ("moved-here", cluster.node.name)):  # no claim has these names
            put(made.resizes(), of_kind(RESIZES, "ClaimResize", name, spec={"capacity": {"memory": "2Gi"}}))
            api.patch(made.resizes(name, "status"), {"status": {"nodeName": node_name, "permit": 1}})
        # An admission policy takes effect a moment after it was written.
        wait_until("the policy about slices in force", lambda: refused(lambda: take_over_pool(made)))
        wait_until("the policy about Events in force", lambda: refused(lambda: speak_as_kubelet(made, "probe")))
        wait_until("the policy about ClaimResizes in force", lambda: refused(lambda: speak_of_resize(made, "moved")))
        yield made


def refused(attempt: Callable[[], object]) -> bool:
    """Tell whether the API server refuses; what it takes before its policies are in force is taken back."""
    try:
        attempt()
    except ApiError:
        return True
    return False


def take_over_pool(scene: Scene) -> None:
    """Offer a device under the victim's pool; a claim of it would make the victim's GPU count as taken."""
    scene.attacker.create(SLICES, a_slice("stolen", scene.home, pool=VICTIM))
    scene.admin.delete(f"{SLICES}/stolen")


def speak_as_kubelet(scene: Scene, name: str = "said") -> None:
    """Say that the victim's node was rebooted."""
    about = {"apiVersion": "v1", "kind": "Node", "name": VICTIM, "uid": VICTIM}
    events = path_of("v1", "events", namespace="default")
    scene.attacker.create(events, an_event(about, name=name, component="kubelet", host=VICTIM, namespace="default"))
    scene.admin.delete(f"{events}/{name}")


def speak_of_resize(scene: Scene, name: str, **more: object) -> Json:
    """Say of a claim that it gave back all that the scheduler may have."""
    said = {"round": 1, "givenBack": {"memory": "80Gi"}}
    return scene.attacker.patch(scene.resizes(name, "status"), {"status": {"node": said, **more}})


def own_event(scene: Scene, name: str) -> Json:
    """An Event as the plugin writes it."""
    about = {"apiVersion": "v1", "kind": "Node", "name": scene.home, "uid": scene.home}
    return an_event(about, name=name, host=scene.home, namespace="default")


def elsewhere(scene: Scene, selection: Json) -> Json:
    """A slice of the attacker's pool with other nodes in it."""
    body = a_slice("wide", scene.home)
    del body["spec"]["nodeName"]
    body["spec"] |= selection
    return body


def moved(scene: Scene) -> Json:
    """The victim's slice as if it were the attacker's."""
    body = scene.admin.get(f"{SLICES}/victims")
    body["spec"]["nodeName"] = body["spec"]["pool"]["name"] = scene.home
    return body


def tainted(scene: Scene) -> Json:
    """The victim's slice with its GPU out of use."""
    body = scene.admin.get(f"{SLICES}/victims")
    body["spec"]["devices"][0]["taints"] = [{"key": "dra-gpu.dev/lost", "effect": "NoExecute"}]
    return body


def token_request() -> Json:
    """A request for a token that is bound to nothing."""
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}


def a_binding() -> Json:
    """All rights for the plugin's account."""
    subject = {"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    return of_kind(RBAC, "ClusterRoleBinding", "mine", roleRef=role, subjects=[subject])


def as_user(scene: Scene, user: str, group: str = "") -> Api:
    """The attacker in another's name."""
    real = scene.attacker
    return Impersonating(real.host, real.port, real.ca, real.token, user, group)


#: Why the server refuses with 422: by a policy of ours, by its own rights for parts of a claim's status, or because an
#: object is what it is. Anything else would be a mistake in the attempt, which would prove nothing.
REASONS = (
    "the node plugin",
    'cannot arbitrary-node:patch resource "resourceclaims/driver"',
    'cannot patch resource "resourceclaims/binding"',
    "field is immutable",
    "must be an allocated device in the claim",
)
Attempt = Callable[[Scene], object]
DEVICE = {"driver": "gpu.nvidia.com", "pool": VICTIM, "device": "gpu-0", "data": {"view": "gpu"}}
EVERYWHERE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}]}
FINALIZED = {"metadata": {"finalizers": ["example.com/never"]}}
LABELLED = {"metadata": {"labels": {"seen": "yes"}}}

ATTEMPTS: dict[str, Attempt] = {
    # ResourceSlices
    "a slice of the victim's node": lambda s: s.attacker.create(SLICES, a_slice("more", VICTIM)),
    "a slice of the victim's pool": take_over_pool,
    "a slice of all nodes": lambda s: s.attacker.create(SLICES, elsewhere(s, {"allNodes": True})),
    "a slice of selected nodes": lambda s: s.attacker.create(SLICES, elsewhere(s, {"nodeSelector": EVERYWHERE})),
    "a slice of each device's nodes": lambda s: s.attacker.create(
        SLICES,
        elsewhere(s, {"perDeviceNodeSelection": True, "devices": [{"name": "gpu-0", "nodeName": VICTIM}]}),
    ),
    "a slice of another driver": lambda s: s.attacker.create(SLICES, a_slice("nic", s.home, driver="nic.example.com")),
    "the victim's slice changed": lambda s: s.attacker.replace(f"{SLICES}/victims", tainted(s)),
    "the victim's slice made its own": lambda s: s.attacker.replace(f"{SLICES}/victims", moved(s)),
    "the victim's slice patched": lambda s: s.attacker.patch(f"{SLICES}/victims", LABELLED),
    "the victim's slice deleted": lambda s: s.attacker.delete(f"{SLICES}/victims"),
    "another driver's slice deleted": lambda s: s.attacker.delete(f"{SLICES}/victims-nic"),
    "all slices deleted": lambda s: s.attacker.delete(SLICES),
    # Claims
    "all claims": lambda s: s.attacker.get("/apis/resource.k8s.io/v1/resourceclaims"),
    "the namespace's claims": lambda s: s.attacker.get(s.claims()),
    "a claim made": lambda s: s.attacker.create(s.claims(), claim("mine")),
    "a claim deleted": lambda s: s.attacker.delete(s.claims("held")),
    "a claim's finalizers": lambda s: s.attacker.patch(s.claims("held-here"), FINALIZED),
    "the victim's device status": lambda s: s.attacker.patch(
        s.claims("held", "status"), {"status": {"devices": [DEVICE]}}
    ),
    "the victim's device in an own claim": lambda s: s.attacker.patch(
        s.claims("held-here", "status"), {"status": {"devices": [DEVICE]}}
    ),
    "the victim's allocation": lambda s: s.attacker.patch(s.claims("held", "status"), {"status": {"allocation": None}}),
    "an own claim's allocation": lambda s: s.attacker.patch(
        s.claims("held-here", "status"), {"status": {"allocation": {"devices": {"results": []}}}}
    ),
    "an own claim's users": lambda s: s.attacker.patch(
        s.claims("held-here", "status"),
        {"status": {"reservedFor": [{"resource": "pods", "name": "job", "uid": "1"}]}},
    ),
    "a claim's binding": lambda s: s.attacker.patch(s.claims("held-here", "binding"), LABELLED),
    "templates": lambda s: s.attacker.get("/apis/resource.k8s.io/v1/resourceclaimtemplates"),
    "a device class": lambda s: s.attacker.patch("/apis/resource.k8s.io/v1/deviceclasses/gpu.nvidia.com", LABELLED),
    "a taint rule": lambda s: s.attacker.create(
        "/apis/resource.k8s.io/v1/devicetaintrules",
        of_kind(
            "resource.k8s.io/v1",
            "DeviceTaintRule",
            "out",
            spec={"deviceSelector": {}, "taint": {"key": "example.com/out", "effect": "NoExecute"}},
        ),
    ),
    # ClaimResizes
    "the victim's resize": lambda s: speak_of_resize(s, "moved"),
    "the victim's resize made its own": lambda s: speak_of_resize(s, "moved", nodeName=s.home),
    "an own resize made the victim's": lambda s: speak_of_resize(s, "moved-here", nodeName=VICTIM),
    "more for an own claim": lambda s: speak_of_resize(s, "moved-here", permit=2, permitted={"memory": "80Gi"}),
    "an own claim that is not kept": lambda s: speak_of_resize(s, "moved-here", reservedRound=1),
    "what an own claim is to have": lambda s: s.attacker.patch(
        s.resizes("moved-here"), {"spec": {"capacity": {"memory": "80Gi"}}}
    ),
    "a resize made": lambda s: s.attacker.create(s.resizes(), of_kind(RESIZES, "ClaimResize", "mine", spec={})),
    "a resize deleted": lambda s: s.attacker.delete(s.resizes("moved-here")),
    # Nodes and pods
    "all nodes": lambda s: s.attacker.get(NODES),
    "the victim's labels": lambda s: s.attacker.patch(f"{NODES}/{VICTIM}", LABELLED),
    "the victim's state": lambda s: s.attacker.patch(f"{NODES}/{VICTIM}/status", {"status": {"phase": "Terminated"}}),
    "the victim deleted": lambda s: s.attacker.delete(f"{NODES}/{VICTIM}"),
    "the victim's kubelet": lambda s: s.attacker.get(f"{NODES}/{VICTIM}/proxy/pods"),
    "its own node's labels": lambda s: s.attacker.patch(f"{NODES}/{s.home}", LABELLED),
    "its own node's capacity": lambda s: s.attacker.patch(
        f"{NODES}/{s.home}/status", {"status": {"capacity": {"nvidia.com/gpu": "64"}}}
    ),
    "all pods": lambda s: s.attacker.get("/api/v1/pods"),
    "the victim's pod": lambda s: s.attacker.get(s.path("pods", "job")),
    "the victim's pod deleted": lambda s: s.attacker.delete(s.path("pods", "job")),
    "the victim's pod evicted": lambda s: s.attacker.create(
        s.path("pods", "job", "eviction"), of_kind("policy/v1", "Eviction", "job")
    ),
    "the victim's pod's state": lambda s: s.attacker.patch(
        s.path("pods", "job", "status"), {"status": {"phase": "Failed"}}
    ),
    "the victim's log": lambda s: s.attacker.text(s.path("pods", "job", "log")),
    "a command in the victim's pod": lambda s: s.attacker.create(s.path("pods", "job", "exec"), {}),
    "a container in the victim's pod": lambda s: s.attacker.patch(s.path("pods", "job", "ephemeralcontainers"), {}),
    "a pod on the victim": lambda s: s.attacker.create(s.path("pods"), a_pod("mine", VICTIM)),
    # What belongs to no node
    "a secret": lambda s: s.attacker.get(s.path("secrets", "password")),
    "all secrets": lambda s: s.attacker.get("/api/v1/secrets"),
    "secrets of its own namespace": lambda s: s.attacker.get(path_of("v1", "secrets", namespace=NAMESPACE)),
    "a config map": lambda s: s.attacker.get(s.path("configmaps", "settings")),
    "a config map changed": lambda s: s.attacker.patch(s.path("configmaps", "settings"), {"data": {"mode": "unsafe"}}),
    "the victim's lease": lambda s: s.attacker.patch(f"{NODE_LEASES}/{VICTIM}", {"spec": {"holderIdentity": "me"}}),
    "a controller's lease": lambda s: s.attacker.create(
        SYSTEM_LEASES,
        of_kind("coordination.k8s.io/v1", "Lease", "dra-gpu-controller", spec={"holderIdentity": "me"}),
    ),
    "leases": lambda s: s.attacker.get(SYSTEM_LEASES),
    # Events
    "an Event as the kubelet": speak_as_kubelet,
    "an Event about the victim": lambda s: s.attacker.create(
        path_of("v1", "events", namespace="default"),
        an_event({"kind": "Node", "name": VICTIM}, host=s.home, namespace="default"),
    ),
    "an Event of the victim's plugin": lambda s: s.attacker.create(
        s.path("events"),
        an_event(
            {"kind": "ResourceClaim", "name": "held", "namespace": s.namespace}, host=VICTIM, namespace=s.namespace
        ),
    ),
    "an Event about a pod": lambda s: s.attacker.create(
        s.path("events"),
        an_event({"kind": "Pod", "name": "job", "namespace": s.namespace}, host=s.home, namespace=s.namespace),
    ),
    "the kubelet's Event changed": lambda s: s.attacker.patch(s.path("events", "told"), {"message": "all is well"}),
    "the kubelet's Event made its own": lambda s: s.attacker.patch(
        s.path("events", "told"),
        {
            "source": {"component": "dra-gpu.dev/node", "host": s.home},
            "reportingComponent": "dra-gpu.dev/node",
            "reportingInstance": s.home,
        },
    ),
    "Events": lambda s: s.attacker.get("/api/v1/events"),
    # Rights
    "a token of its own account": lambda s: s.attacker.create(
        path_of("v1", "serviceaccounts", SERVICE_ACCOUNT, namespace=NAMESPACE, subresource="token"), token_request()
    ),
    "a token of another account": lambda s: s.attacker.create(
        s.path("serviceaccounts", "default", "token"), token_request()
    ),
    "all rights": lambda s: s.attacker.create(path_of(RBAC, "clusterrolebindings"), a_binding()),
    "a wider role": lambda s: s.attacker.patch(path_of(RBAC, "clusterroles", "dra-gpu-node"), {"rules": []}),
    "no policy": lambda s: s.attacker.delete(path_of(ADMISSION, "validatingadmissionpolicies", POLICY)),
    "no policy's binding": lambda s: s.attacker.delete(path_of(ADMISSION, "validatingadmissionpolicybindings", POLICY)),
    "a certificate": lambda s: s.attacker.create(
        path_of("certificates.k8s.io/v1", "certificatesigningrequests"),
        of_kind(
            "certificates.k8s.io/v1",
            "CertificateSigningRequest",
            "mine",
            spec={"request": "", "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]},
        ),
    ),
    "others' tokens tried out": lambda s: s.attacker.create(
        path_of("authentication.k8s.io/v1", "tokenreviews"),
        of_kind("authentication.k8s.io/v1", "TokenReview", "", spec={"token": "x"}),
    ),
    "to be the victim's kubelet": lambda s: as_user(s, f"system:node:{VICTIM}", "system:nodes").get(
        f"{NODES}/{VICTIM}"
    ),
    "to be an administrator": lambda s: as_user(s, "admin", "system:masters").get("/api/v1/secrets"),
}


@pytest.mark.case("C154")
@pytest.mark.parametrize("what", ATTEMPTS)
def test_with_the_token_of_a_nodes_plugin_there_is_no_way_to(scene: Scene, what: str) -> None:
    before = scene.belongings()

    with pytest.raises(ApiError) as refusal:
        ATTEMPTS[what](scene)

    assert refusal.value.status == 403 or any(why in refusal.value.message for why in REASONS), refusal.value
    assert scene.belongings() == before


def test_metadata_that_comes_with_a_device_status_changes_nothing(scene: Scene) -> None:
    path = scene.claims("held-here")
    own = DEVICE | {"pool": scene.home}
    before = scene.admin.get(path)["metadata"]

    scene.attacker.patch(
        f"{path}/status", {"status": {"devices": [own]}} | {"metadata": FINALIZED["metadata"] | LABELLED["metadata"]}
    )

    after = scene.admin.get(path)
    assert after["status"]["devices"][0]["data"] == {"view": "gpu"}
    assert (after["metadata"].get("labels"), after["metadata"].get("finalizers")) == (
        before.get("labels"),
        before.get("finalizers"),
    )


def test_its_own_part_of_an_own_resize_is_taken_and_nothing_else_of_it_changes(scene: Scene) -> None:
    before = scene.admin.get(scene.resizes("moved-here"))

    after = speak_of_resize(scene, "moved-here")

    assert after["status"]["node"]["givenBack"] == {"memory": "80Gi"}
    assert after["spec"] == before["spec"]
    assert (after["status"]["permit"], after["status"]["nodeName"]) == (1, scene.home)


def test_its_own_events_are_taken_and_counted_on(scene: Scene) -> None:
    events = path_of("v1", "events", namespace="default")
    scene.attacker.create(events, own_event(scene, "own"))
    try:
        counted = scene.attacker.patch(f"{events}/own", {"count": 2, "message": "all pods have to go"})

        assert counted["count"] == 2
        with pytest.raises(ApiError, match="may write Events of its own only"):
            scene.attacker.patch(f"{events}/own", {"reportingComponent": "kubelet"})
    finally:
        scene.admin.delete(f"{events}/own")


def test_the_node_in_the_token_decides_not_the_account(scene: Scene) -> None:
    pods = path_of("v1", "pods", namespace=NAMESPACE)
    body = a_pod("plugin-of-the-victim", VICTIM)
    body["spec"]["serviceAccountName"] = SERVICE_ACCOUNT
    pod = scene.admin.create(pods, body)
    try:
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        account = path_of("v1", "serviceaccounts", SERVICE_ACCOUNT, namespace=NAMESPACE, subresource="token")
        request = token_request() | {"spec": {"boundObjectRef": bound}}
        victim = scene.cluster.api_with(scene.admin.create(account, request)["status"]["token"])

        with pytest.raises(ApiError, match=f"the node plugin of node {VICTIM} may write its own slices only"):
            victim.create(SLICES, a_slice("revenge", scene.home))
        with pytest.raises(ApiError, match=f"the node plugin of node {VICTIM} may write Events of its own only"):
            victim.create(path_of("v1", "events", namespace="default"), own_event(scene, "revenge"))
        assert victim.get(f"{SLICES}/victims")["spec"]["nodeName"] == VICTIM
    finally:
        scene.admin.delete(f"{pods}/{pod['metadata']['name']}", grace_seconds=0)
