"""What the node plugin's token may do, and what the cluster's policies refuse to users.

The token is the one that the plugin runs with in the other tests: bound to a pod of its node.
"""

from collections.abc import Callable, Iterator

import pytest
from lab.api import Api, ApiError, Json, path_of
from lab.identity import node_token

from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import claim, claim_template, device_request
from tests.e2e.harness.slices import SLICES
from tests.e2e.harness.waiting import wait_until

MONITOR = "monitor.nvidia.com"
pytestmark = pytest.mark.budget(5)


@pytest.fixture(scope="module")
def plugin_api(cluster: Cluster) -> Api:
    """The API with the rights of the plugin on the test node."""
    api = cluster.api_with(node_token(cluster.api, cluster.node))
    # An admission policy takes effect a moment after it was written.
    wait_until("the slice policy in force", lambda: _refusal(api, a_slice("probe", "another-node")) is not None)
    return api


@pytest.fixture(scope="module", autouse=True)
def monitor_policy(cluster: Cluster) -> None:
    """The policy about the monitor class, which takes effect a moment after it was written, too."""
    claims = path_of("resource.k8s.io/v1", "resourceclaims", namespace="default")

    def refused() -> bool:
        try:
            cluster.api.create(claims, claim("probe", device_request("look", MONITOR)))
        except ApiError as error:
            return error.status == 422
        cluster.api.delete(f"{claims}/probe")
        return False

    wait_until("the policy about the monitor class in force", refused)


def a_slice(name: str, node_name: str, driver: str = "gpu.nvidia.com", pool: str = "") -> Json:
    """A slice with one device, of the node's pool unless another is named."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node_name,
            "pool": {"name": pool or node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"type": {"string": "probe"}}}],
        },
    }


def _refusal(api: Api, body: Json) -> str | None:
    """Try to create a slice; return the refusal's text, or None if it was taken (it is deleted again)."""
    try:
        api.create(SLICES, body)
    except ApiError as error:
        return error.message
    api.delete(f"{SLICES}/{body['metadata']['name']}")
    return None


def test_the_plugin_writes_changes_and_deletes_a_slice_of_its_own_node(cluster: Cluster, plugin_api: Api) -> None:
    path = f"{SLICES}/rights-own"

    created = plugin_api.create(SLICES, a_slice("rights-own", cluster.node.name))
    created["spec"]["devices"][0]["name"] = "gpu-1"
    changed = plugin_api.replace(path, created)
    plugin_api.delete(path, missing_ok=False)

    assert changed["spec"]["devices"][0]["name"] == "gpu-1"
    assert not cluster.api.exists(path)


def test_the_plugin_is_refused_a_slice_of_another_node(plugin_api: Api) -> None:
    refusal = _refusal(plugin_api, a_slice("rights-other", "another-node"))

    assert refusal is not None
    assert "the node plugin of node node-1 may write its own slices only, not one of node another-node" in refusal


def test_the_plugin_is_refused_the_deletion_of_another_nodes_slice(cluster: Cluster, plugin_api: Api) -> None:
    path = f"{SLICES}/rights-foreign"
    cluster.api.create(SLICES, a_slice("rights-foreign", "another-node"))

    try:
        with pytest.raises(ApiError, match="may write its own slices only"):
            plugin_api.delete(path)
        assert cluster.api.exists(path)
    finally:
        cluster.api.delete(path)


def test_the_plugin_is_refused_a_slice_of_another_driver(cluster: Cluster, plugin_api: Api) -> None:
    refusal = _refusal(plugin_api, a_slice("rights-driver", cluster.node.name, driver="nic.example.com"))

    assert refusal is not None
    assert "slices of its own drivers only, not of nic.example.com" in refusal


def test_a_token_that_names_no_node_writes_no_slice_at_all(cluster: Cluster, plugin_api: Api) -> None:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    account = path_of("v1", "serviceaccounts", "dra-gpu-node", namespace="dra-gpu", subresource="token")
    unbound = cluster.api_with(cluster.api.create(account, request)["status"]["token"])

    refusal = _refusal(unbound, a_slice("rights-unbound", cluster.node.name))

    assert refusal is not None
    assert "this token names no node" in refusal


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("get", "/api/v1/secrets"),
        ("get", "/api/v1/pods"),
        ("get", "/api/v1/nodes"),
        ("get", "/apis/resource.k8s.io/v1/resourceclaims"),
        ("get", "/apis/resource.k8s.io/v1/deviceclasses"),
    ],
)
def test_the_plugin_may_not_list_what_it_does_not_need(plugin_api: Api, verb: str, path: str) -> None:
    with pytest.raises(ApiError) as refused:
        getattr(plugin_api, verb)(path)

    assert refused.value.status == 403


def test_the_plugin_reads_its_node_and_a_claim_by_name(
    cluster: Cluster, plugin_api: Api, namespace: TestNamespace
) -> None:
    namespace.create(claim("readable"))

    claims = path_of("resource.k8s.io/v1", "resourceclaims", "readable", namespace=namespace.name)
    assert plugin_api.get(claims)["metadata"]["name"] == "readable"
    assert plugin_api.get(f"/api/v1/nodes/{cluster.node.name}")["metadata"]["name"] == cluster.node.name


@pytest.fixture
def allocated(namespace: TestNamespace) -> Iterator[Callable[..., str]]:
    """Makes a claim allocated on a node, as the scheduler does; returns the path of its status."""

    def allocate(node_name: str, driver: str = "gpu.nvidia.com") -> str:
        namespace.create(claim("allocated"))
        here = {"key": "metadata.name", "operator": "In", "values": [node_name]}
        allocation = {
            "devices": {"results": [{"request": "gpu", "driver": driver, "pool": "a-pool", "device": "gpu-0"}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        }
        path = path_of("resource.k8s.io/v1", "resourceclaims", "allocated", namespace=namespace.name)
        namespace.api.patch(f"{path}/status", {"status": {"allocation": allocation}})
        return f"{path}/status"

    yield allocate
    namespace.delete_claim("allocated")


def device_of(driver: str = "gpu.nvidia.com") -> Json:
    """The change that writes the status of a claim's device."""
    return {"status": {"devices": [{"driver": driver, "pool": "a-pool", "device": "gpu-0", "data": {"view": "gpu"}}]}}


def test_the_plugin_writes_the_status_of_its_device_in_a_claim_of_its_own_node(
    cluster: Cluster, plugin_api: Api, allocated: Callable[..., str]
) -> None:
    path = allocated(cluster.node.name)

    written = plugin_api.patch(path, device_of())

    (device,) = written["status"]["devices"]
    assert (device["device"], device["data"]) == ("gpu-0", {"view": "gpu"})


def test_the_plugin_is_refused_the_device_status_in_a_claim_of_another_node(
    plugin_api: Api, allocated: Callable[..., str]
) -> None:
    path = allocated("another-node")

    with pytest.raises(ApiError, match=r'cannot arbitrary-node:patch resource "resourceclaims/driver"'):
        plugin_api.patch(path, device_of())


def test_the_plugin_is_refused_the_status_of_another_drivers_device(
    cluster: Cluster, plugin_api: Api, allocated: Callable[..., str]
) -> None:
    path = allocated(cluster.node.name, "nic.example.com")

    with pytest.raises(ApiError, match=r'"nic.example.com" is forbidden: .* cannot associated-node:patch'):
        plugin_api.patch(path, device_of("nic.example.com"))


def test_the_plugin_is_refused_the_allocation_of_a_claim(
    cluster: Cluster, plugin_api: Api, allocated: Callable[..., str]
) -> None:
    path = allocated(cluster.node.name)

    with pytest.raises(ApiError, match=r'cannot patch resource "resourceclaims/binding"'):
        plugin_api.patch(path, {"status": {"allocation": None}})


@pytest.mark.parametrize("make", [claim, claim_template])
def test_the_monitor_class_without_admin_access_is_refused_with_the_way_out(
    admin_namespace: TestNamespace, make: Callable[..., Json]
) -> None:
    with pytest.raises(ApiError, match=r"set exactly\.adminAccess: true") as refused:
        admin_namespace.create(make("looks-on", device_request("look", MONITOR)))

    assert "request look uses class monitor.nvidia.com without admin access" in refused.value.message
    assert refused.value.status == 422


def test_the_monitor_class_as_an_alternative_is_refused(admin_namespace: TestNamespace) -> None:
    alternatives = [{"name": "use", "deviceClassName": "gpu.nvidia.com"}, {"name": "see", "deviceClassName": MONITOR}]

    with pytest.raises(ApiError, match=r"request any uses class monitor\.nvidia\.com without admin access"):
        admin_namespace.create(claim("either", {"name": "any", "firstAvailable": alternatives}))


def test_the_monitor_class_with_admin_access_is_taken_in_a_namespace_that_allows_it(
    admin_namespace: TestNamespace,
) -> None:
    admin_namespace.create(claim("looks-on", device_request("look", MONITOR, all_devices=True, admin=True)))

    assert admin_namespace.claim("looks-on")["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] is True


@pytest.mark.case("C155")
def test_admin_access_is_refused_in_a_namespace_that_does_not_allow_it(namespace: TestNamespace) -> None:
    with pytest.raises(ApiError, match="admin access"):
        namespace.create(claim("looks-on", device_request("look", MONITOR, admin=True)))


def test_other_classes_need_no_admin_access(namespace: TestNamespace) -> None:
    namespace.create(claim("uses"), claim_template("uses-too"))

    assert [one["metadata"]["name"] for one in namespace.claims()] == ["uses"]


@pytest.fixture
def user(cluster: Cluster, namespace: TestNamespace) -> Api:
    """Somebody who may do everything with the claims and resizes of a namespace."""
    api, name = cluster.api, namespace.name
    rules = [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["*"]},
        {"apiGroups": ["resource.dra-gpu.dev"], "resources": ["*"], "verbs": ["*"]},
    ]
    rbac, kinds = (
        "rbac.authorization.k8s.io/v1",
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"},
    )
    subject = {"kind": "ServiceAccount", "name": "user", "namespace": name}
    meta: Json = {"metadata": {"name": "all"}}
    accounts = path_of("v1", "serviceaccounts", namespace=name)
    api.create(accounts, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "user"}})
    api.create(path_of(rbac, "roles", namespace=name), {"apiVersion": rbac, "kind": "Role", "rules": rules} | meta)
    binding: Json = {"apiVersion": rbac, "kind": "RoleBinding", "roleRef": kinds, "subjects": [subject]}
    api.create(path_of(rbac, "rolebindings", namespace=name), binding | meta)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return cluster.api_with(api.create(f"{accounts}/user/token", request)["status"]["token"])


def test_who_may_do_everything_in_a_namespace_makes_no_growth_and_writes_no_status_of_a_resize(
    cluster: Cluster, namespace: TestNamespace, user: Api
) -> None:
    label = {"metadata": {"labels": {"resource.dra-gpu.dev/claim-resize": "uid"}}}
    claims = path_of("resource.k8s.io/v1", "resourceclaims", namespace=namespace.name)
    resizes = path_of("resource.dra-gpu.dev/v1alpha1", "claimresizes", namespace=namespace.name)
    resize: Json = {
        "apiVersion": "resource.dra-gpu.dev/v1alpha1",
        "kind": "ClaimResize",
        "metadata": {"name": "none"},
        "spec": {"capacity": {"memory": "2Gi"}},
    }
    user.create(claims, claim("plain"))
    user.create(resizes, resize)

    def attempts() -> list[Callable[[], object]]:
        labelled = claim("labelled")
        labelled["metadata"] |= label["metadata"]
        more = {"status": {"permit": 2, "permitted": {"memory": "80Gi"}}}
        return [
            lambda: user.create(claims, labelled),
            lambda: user.patch(f"{claims}/plain", label),
            lambda: user.patch(f"{resizes}/none/status", more),
        ]

    def refused(attempt: Callable[[], object]) -> bool:
        try:
            attempt()
        except ApiError as error:
            return error.status == 422 and ("only the controller" in error.message or "write its spec" in error.message)
        cluster.api.delete(f"{claims}/labelled", missing_ok=True)
        cluster.api.patch(f"{claims}/plain", {"metadata": {"labels": {"resource.dra-gpu.dev/claim-resize": None}}})
        return False

    # An admission policy takes effect a moment after it was written.
    wait_until("the policies about resizing in force", lambda: all(refused(one) for one in attempts()))
    user.patch(f"{claims}/plain", {"metadata": {"labels": {"team": "a"}}})
    user.delete(f"{resizes}/none")
    user.delete(f"{claims}/plain")
