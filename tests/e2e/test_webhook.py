"""The webhook on the real cluster: what API servers let through because of it, without it, and while its certificate
changes. Two replicas run as host processes with the rights of their account; a Service leads to both.
"""

import base64
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from lab.api import Api, ApiError, Json, path_of
from lab.identity import NAMESPACE

from dra_gpu.webhook import certificates
from dra_gpu.webhook.certificates import TlsMaterial
from tests.e2e.harness import quick_certificates
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.components import Component, component
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import claim, claim_template, device_request
from tests.e2e.harness.waiting import PATIENCE, wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME = "dra-gpu-webhook"
NAMES = (f"{NAME}.{NAMESPACE}.svc", f"{NAME}.{NAMESPACE}", NAME)
RESOURCE = "resource.k8s.io"
CLASSES = path_of(f"{RESOURCE}/v1", "deviceclasses")
CONFIGURATION = path_of("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", NAME)
SECRET = path_of("v1", "secrets", f"{NAME}-tls", namespace=NAMESPACE)
SLICES_OF_SERVICE = path_of("discovery.k8s.io/v1", "endpointslices", namespace=NAMESPACE)
GOOD = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}},
}
BAD = GOOD | {"sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}}
TOLD = "mpsConfig does not belong to strategy TimeSlicing: remove it, or set strategy: MPS"
#: An authority has half of its year behind it after so long, and is not due yet.
OLD = timedelta(days=200)
AT_ONCE = 8
DRY_RUN = "?dryRun=All"
pytestmark = pytest.mark.budget(10)


@dataclass(frozen=True)
class Webhook:
    """The replicas that serve, and what the cluster has of them."""

    cluster: Cluster
    replicas: tuple[Component, ...]
    ports: tuple[int, ...]
    old: TlsMaterial
    renew: Path

    def bundle(self) -> bytes:
        """Whom the API server is told to trust."""
        configuration = self.cluster.api.get(CONFIGURATION)
        (text,) = {one["clientConfig"].get("caBundle", "") for one in configuration["webhooks"]}
        return base64.b64decode(text)

    def authorities(self) -> list[x509.Certificate]:
        """The same, one by one."""
        return x509.load_pem_x509_certificates(self.bundle())

    def shown(self) -> list[x509.Certificate]:
        """What each replica shows to a new connection."""
        address = self.cluster.node.address
        return [
            x509.load_pem_x509_certificate(ssl.get_server_certificate((address, port), timeout=PATIENCE).encode())
            for port in self.ports
        ]


def manifest(kind: str) -> Json:
    """The one object of a kind in deploy/webhook.yaml."""
    (found,) = [one for one in yaml.safe_load_all((DEPLOY / "webhook.yaml").read_text()) if one["kind"] == kind]
    return dict(found)


def encoded(material: TlsMaterial) -> dict[str, str]:
    """The data of a Secret."""
    return {name: base64.b64encode(value).decode() for name, value in material.data().items()}


def aged(now: datetime) -> TlsMaterial:
    """What a webhook has that was installed a while ago, with a certificate of last month."""
    old = certificates.renewed(TlsMaterial.of({}), NAMES, now - OLD)
    return certificates.renewed(old, NAMES, now - timedelta(days=30))


@pytest.fixture(scope="module")
def stored_before(cluster: Cluster) -> Iterator[str]:
    """A class with a bad config from before the webhook; returns its path."""
    path = f"{CLASSES}/stored-before.example.com"
    cluster.api.delete(path)
    cluster.api.create(CLASSES, a_class("stored-before.example.com", BAD))
    yield path
    cluster.api.delete(path)


@pytest.fixture(scope="module")
def webhook(cluster: Cluster, stored_before: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """Two replicas that are announced, with an authority that is not young any more."""
    renew = tmp_path_factory.mktemp("webhook") / "renew"
    api = cluster.api
    with ExitStack() as stack:

        def put(collection: str, body: Json) -> None:
            path = f"{collection}/{body['metadata']['name']}"
            api.delete(path)  # what a run that was killed has left in a cluster that is kept
            api.create(collection, body)
            stack.callback(api.delete, path)

        # The last in is the first out: while nobody serves, the configuration must be gone.
        old = aged(datetime.now(UTC))
        put(SECRET.rpartition("/")[0], manifest("Secret") | {"data": encoded(old)})
        service = manifest("Service")
        del service["spec"]["selector"]  # it leads to what runs beside the pods
        put(path_of("v1", "services", namespace=NAMESPACE), service)
        put(CONFIGURATION.rpartition("/")[0], manifest("ValidatingWebhookConfiguration"))
        program, told = (sys.executable, quick_certificates.__file__), {quick_certificates.TOLD: str(renew)}
        replicas = tuple(
            stack.enter_context(
                component(cluster, "webhook", "--port=0", "--drain=0.1", program=program, environment=told)
            )
            for _ in range(2)
        )
        ports = tuple(int(one.wait_logged("the webhook listens")["port"]) for one in replicas)
        for number, port in enumerate(ports):
            put(SLICES_OF_SERVICE, endpoints(f"{NAME}-{number}", cluster.node.address, port))
        made = Webhook(cluster, replicas, ports, old, renew)
        for one in replicas:
            one.wait_logged("new connections are shown another certificate")
        try:
            # The API server hears of the configuration and of the Service's endpoints a moment after they were written.
            wait_until("the webhook asked", lambda: says(api, TOLD))
        except TimeoutError as error:
            logs = "\n".join(one.process.tail() for one in replicas)
            raise AssertionError(f"{error}; the API server says {refusal(api)}; the logs end with:\n{logs}") from error
        stack.callback(api.delete, CONFIGURATION)
        yield made


def endpoints(name: str, address: str, port: int) -> Json:
    """Where the Service leads."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }


def refusal(api: Api) -> str:
    """What the API server says against a bad claim; nothing where it takes it. Nothing is stored."""
    path = path_of(f"{RESOURCE}/v1", "resourceclaims", namespace="default")
    try:
        api.create(path + DRY_RUN, claim("probe", parameters=BAD))
    except ApiError as error:
        return error.message
    return ""


def says(api: Api, words: str) -> bool:
    """Tell whether a bad claim is refused with some words."""
    return words in refusal(api)


def a_class(name: str, parameters: Json) -> Json:
    """A DeviceClass with a config for our driver."""
    return {
        "apiVersion": f"{RESOURCE}/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]},
    }


def of_version(one: Json, version: str) -> Json:
    """The same object in another version of its API."""
    found = {**one, "apiVersion": f"{RESOURCE}/{version}"}
    if version == "v1beta1":
        spec = found["spec"].get("spec") or found["spec"]
        asked = spec["devices"]["requests"]
        spec["devices"] = {**spec["devices"], "requests": [{"name": r["name"], **r["exactly"]} for r in asked]}
    return found


@pytest.mark.case("C136")
@pytest.mark.parametrize("make", [claim, claim_template])
def test_a_bad_config_is_refused_in_every_version_that_the_cluster_serves(
    webhook: Webhook, namespace: TestNamespace, make: Callable[..., Json]
) -> None:
    group = webhook.cluster.api.get(f"/apis/{RESOURCE}")
    versions = [one["version"] for one in group["versions"] if one["version"] in {"v1", "v1beta1", "v1beta2"}]
    plural = "resourceclaims" if make is claim else "resourceclaimtemplates"
    assert "v1" in versions

    for version in versions:
        path = path_of(f"{RESOURCE}/{version}", plural, namespace=namespace.name)
        with pytest.raises(ApiError) as refused:
            namespace.api.create(path, of_version(make("bad", parameters=BAD), version))
        assert TOLD in refused.value.message
        assert refused.value.status == 422

        namespace.api.create(path, of_version(make(f"good-{version}", parameters=GOOD), version))


@pytest.mark.case("C136")
def test_a_bad_class_from_before_is_kept_labelled_and_deleted_and_no_new_one_is_taken(
    webhook: Webhook, stored_before: str
) -> None:
    api = webhook.cluster.api
    labelled = api.patch(stored_before, {"metadata": {"labels": {"team": "a"}, "finalizers": ["example.com/f"]}})
    assert labelled["metadata"]["labels"] == {"team": "a"}

    with pytest.raises(ApiError, match="more is not a known field"):
        api.patch(stored_before, {"spec": a_class("", GOOD | {"kind": "GpuConfig", "more": 1})["spec"]})
    with pytest.raises(ApiError, match="does not belong to strategy TimeSlicing"):
        api.create(CLASSES, a_class("new.example.com", BAD))

    api.delete(stored_before)
    api.patch(stored_before, {"metadata": {"finalizers": None}})
    assert not api.exists(stored_before)


def test_claims_of_other_drivers_are_taken_with_whatever_config_they_have(
    webhook: Webhook, namespace: TestNamespace
) -> None:
    namespace.create(others_claim("others"))

    assert namespace.claim("others")["spec"]["devices"]["config"][0]["opaque"]["parameters"] == {"mtu": "jumbo"}


def others_claim(name: str) -> Json:
    """A claim of another driver."""
    found = claim(name, device_request("nic", "nic.example.com"), parameters={"mtu": "jumbo"})
    found["spec"]["devices"]["config"][0]["opaque"]["driver"] = "nic.example.com"
    return found


@dataclass
class Asking:
    """Threads that ask for good and bad claims all the time, none of which is stored."""

    api: Api
    asked: int = 0
    wrong: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Begin."""
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(2)]
        for one in self._threads:
            one.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        for one in self._threads:
            one.join(PATIENCE)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.once()
            time.sleep(0.05)  # a user's pace: what is tested takes twenty seconds

    def once(self) -> None:
        """Ask once for each; notes what should have been answered otherwise."""
        path = path_of(f"{RESOURCE}/v1", "resourceclaims", namespace="default") + DRY_RUN
        try:
            self.api.create(path, claim("good", parameters=GOOD))
        except (ApiError, OSError) as error:
            self.wrong.append(f"{datetime.now(UTC):%H:%M:%S.%f} a good claim was refused: {error}")
        answer = refusal(self.api)
        if TOLD not in answer:
            self.wrong.append(f"{datetime.now(UTC):%H:%M:%S.%f} a bad claim was answered: {answer or 'taken'}")
        self.asked += 1


@pytest.mark.budget(60)
def test_the_certificate_and_its_authority_are_replaced_while_requests_come_and_none_is_answered_wrongly(
    webhook: Webhook, record_property: Callable[[str, object], None]
) -> None:
    before = [one.process.running() for one in webhook.replicas]
    (old,) = x509.load_pem_x509_certificates(webhook.old.authorities)
    assert webhook.authorities() == [old]
    asking = Asking(webhook.cluster.api)
    asking.start()
    began = time.monotonic()
    try:
        webhook.renew.touch()

        def replaced() -> bool:
            newest = webhook.authorities()[-1]
            return newest != old and all(signed_by(one, newest) for one in webhook.shown())

        wait_until("a new authority's certificate in use", replaced, 2 * PATIENCE, every=1.0)
        burst = [threading.Thread(target=asking.once) for _ in range(AT_ONCE)]
        for one in burst:
            one.start()
        for one in burst:
            one.join(PATIENCE)
    finally:
        asking.stop()

    record_property("requests during a rotation", f"{2 * asking.asked} in {time.monotonic() - began:.0f} s")
    assert asking.wrong == []
    assert asking.asked > AT_ONCE
    assert webhook.authorities()[0] == old, "an API server that has an old connection still trusts it"
    assert len({one.serial_number for one in webhook.shown()}) == 1
    assert [one.process.running() for one in webhook.replicas] == before


def signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Tell whether an authority vouches for a certificate."""
    return certificate.issuer == authority.subject


def test_while_no_webhook_answers_claims_of_this_driver_wait_and_all_others_go_on(
    webhook: Webhook, namespace: TestNamespace
) -> None:
    for one in webhook.replicas:
        one.process.stop(seconds=PATIENCE)
    names = (f"later-{number}" for number in count())

    with pytest.raises(ApiError, match=r'failed calling webhook "claims\.dra-gpu\.dev"'):
        namespace.create(claim(next(names), parameters=GOOD))
    namespace.create(others_claim("others"))
    with pytest.raises(ApiError, match=r"set exactly\.adminAccess: true"):
        namespace.create(claim(next(names), device_request("look", "monitor.nvidia.com")))

    webhook.cluster.api.delete(CONFIGURATION)
    wait_until("the configuration away", lambda: takes(namespace, next(names)))


def takes(namespace: TestNamespace, name: str) -> bool:
    """Tell whether the API server takes a claim."""
    try:
        namespace.create(claim(name, parameters=GOOD))
    except ApiError:
        return False
    return True
