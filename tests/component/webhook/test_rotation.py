"""The certificate in the cluster: made, announced, renewed and agreed upon by replicas. The clock is the test's."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from dra_gpu.apiserver import errors
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import Connection
from dra_gpu.webhook import certificates
from dra_gpu.webhook.app import Routes
from dra_gpu.webhook.certificate_files import CertificateFiles
from dra_gpu.webhook.certificates import KeyPair, TlsMaterial
from dra_gpu.webhook.http_server import HttpsServer
from dra_gpu.webhook.rotation import CONFIGURATIONS, LOOK_SECONDS, NoSecretError, Rotation
from dra_gpu.webhook.serving import CertificateError, Serving
from tests.component.apiserver.conftest import SkippingClock, running
from tests.component.webhook import cluster
from tests.component.webhook.cluster import bundle, put_configuration, put_secret, secret, writes
from tests.component.webhook.tls import PATIENCE, PLACE, connected
from tests.unit.webhook.test_certificates import trusted

DAY = timedelta(days=1)


def shown_in(data):
    """Return the pair in a Secret's data."""
    return KeyPair(data["tls.crt"], data["tls.key"])


class Calendar:
    """The present time."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self):
        return self.now


@pytest.fixture
def calendar():
    return Calendar()


@pytest.fixture
def serving():
    return Serving()


@pytest.fixture
def rotation(api, serving, calendar):
    return Rotation(api, PLACE, serving, calendar)


@pytest.fixture
async def port(serving):
    server = HttpsServer(Routes(serving, {}).handle)
    await server.start("127.0.0.1", 0, serving.context)
    yield server.port
    await server.stop(0)


async def test_from_an_empty_secret_comes_a_certificate_that_api_servers_accept(api_server, rotation, serving, port):
    put_configuration(api_server)
    put_secret(api_server)
    assert not serving.ready

    await rotation.look()

    assert serving.ready
    async with connected(port, bundle(api_server)) as client:
        assert (await client.request("GET", "/readyz"))[0] == 200


async def test_before_there_is_a_certificate_it_is_alive_but_not_ready(port):
    async with connected(port, None) as client:
        assert (await client.request("GET", "/healthz"))[0] == 200
        status, _, body = await client.request("GET", "/readyz")

    assert (status, b"no certificate yet" in body) == (503, True)


async def test_webhooks_of_others_and_the_rest_of_ours_stay_as_they_are(api_server, rotation):
    put_configuration(api_server)
    before = cluster.configuration(api_server)

    await rotation.look()

    after = cluster.configuration(api_server)
    del after["webhooks"][0]["clientConfig"]["caBundle"]
    assert after["webhooks"] == before["webhooks"]


async def test_where_nothing_is_due_nothing_is_written(api_server, rotation, calendar):
    put_configuration(api_server)
    await rotation.look()

    for _ in range(5):
        calendar.now += DAY
        await rotation.look()

    assert writes(api_server, "secrets") == [201]
    assert writes(api_server, "validatingwebhookconfigurations") == [200]


async def test_a_new_certificate_is_shown_without_a_restart_and_old_connections_go_on(
    api_server, rotation, calendar, port
):
    put_configuration(api_server)
    calendar.now -= 70 * DAY
    await rotation.look()

    async with connected(port, bundle(api_server)) as old:
        calendar.now += 70 * DAY
        await rotation.look()

        async with connected(port, bundle(api_server)) as new:
            assert new.certificate != old.certificate
            for client in (old, new, old):
                assert (await client.request("GET", "/healthz"))[0] == 200


async def test_replicas_that_start_at_once_agree_on_one_certificate(api_server, calendar):
    put_configuration(api_server)
    put_secret(api_server)
    clients = [HttpKubernetesApi(Connection(api_server.url)) for _ in range(5)]
    servings = [Serving() for _ in clients]
    rotations = [Rotation(*pair, calendar) for pair in zip(clients, (PLACE,) * 5, servings, strict=True)]

    for _ in range(3):
        await asyncio.gather(*(one.look() for one in rotations))
        calendar.now += 61 * DAY

    calendar.now -= 61 * DAY
    await asyncio.gather(*(one.look() for one in rotations))
    assert len({one._shown for one in servings}) == 1
    assert writes(api_server, "secrets").count(200) == 3
    assert trusted(bundle(api_server), shown_in(secret(api_server)), calendar.now)
    for client in clients:
        client.close()


async def test_an_older_bundle_never_replaces_a_newer_one(api_server, api, serving, calendar):
    """A replica is held up between its reads and its write, while another one announces a new authority."""
    put_configuration(api_server)
    quick = Rotation(api, PLACE, serving, calendar)
    await quick.look()
    stale_bundle = bundle(api_server)
    cut = cluster.configuration(api_server)
    del cut["webhooks"][0]["clientConfig"]["caBundle"]

    class HeldUp:
        """An API whose answers are from before, up to the write."""

        def __init__(self) -> None:
            self.held = False

        async def get(self, resource, name, namespace="", **more):
            found = await api.get(resource, name, namespace, **more)
            if resource is not CONFIGURATIONS and not self.held:
                self.held = True
                calendar.now += 300 * DAY
                await quick.look()
            return found

        async def patch(self, *arguments, **more):
            return await api.patch(*arguments, **more)

    await api.patch(
        CONFIGURATIONS,
        {"metadata": {"resourceVersion": cut["metadata"]["resourceVersion"]}, "webhooks": cut["webhooks"]},
        PLACE.configuration,
    )
    slow = Rotation(HeldUp(), PLACE, Serving(), calendar)
    await slow.look()

    assert bundle(api_server) != stale_bundle
    assert bundle(api_server) == secret(api_server)["ca.crt"]


async def test_for_three_years_an_api_server_that_hears_of_changes_late_is_answered(api_server, rotation, calendar):
    put_configuration(api_server)
    await rotation.look()
    end = calendar.now + 3 * 365 * DAY

    while calendar.now < end:
        heard = bundle(api_server)
        calendar.now += timedelta(hours=1)
        await rotation.look()
        assert trusted(heard, shown_in(secret(api_server)), calendar.now)
        calendar.now += 5 * DAY


@pytest.mark.parametrize("data", [{}, {"tls.crt": "AAAA", "ca.crt": "?"}, {"other": "eA=="}])
async def test_a_secret_that_somebody_emptied_or_damaged_is_filled_again(api_server, rotation, port, data):
    put_configuration(api_server)
    put_secret(api_server, data)

    await rotation.look()

    async with connected(port, bundle(api_server)) as client:
        assert (await client.request("GET", "/healthz"))[0] == 200


async def test_a_bundle_that_somebody_removed_is_announced_again(api_server, rotation):
    put_configuration(api_server)
    await rotation.look()
    announced = bundle(api_server)
    api_server.remove("validatingwebhookconfigurations", PLACE.configuration)
    put_configuration(api_server)
    assert bundle(api_server) == b""

    await rotation.look()

    assert bundle(api_server) == announced


async def test_without_a_configuration_nothing_is_shown(api_server, rotation, serving):
    put_secret(api_server)

    with pytest.raises(errors.NotFoundError):
        await rotation.look()

    assert not serving.ready


async def test_a_secret_that_somebody_deleted_is_asked_for_by_name_and_filled_once_it_is_there(
    api_server, rotation, serving
):
    put_configuration(api_server)
    api_server.faults.fail(status=403, verb="create", resource="secrets")

    with pytest.raises(NoSecretError, match=f"kubectl create secret generic {PLACE.secret} -n {PLACE.namespace}"):
        await rotation.look()
    assert not serving.ready
    put_secret(api_server)
    await rotation.look()

    assert serving.ready


async def test_it_goes_on_by_itself_once_the_cluster_answers(api_server, api, serving, calendar):
    put_configuration(api_server)
    clock = SkippingClock()
    api_server.faults.fail(status=500, count=5)
    seen = asyncio.Event()
    clock_sleep = clock.sleep

    async def sleep(seconds):
        await clock_sleep(seconds)
        if seconds == LOOK_SECONDS:
            seen.set()

    clock.sleep = sleep
    async with running(Rotation(api, PLACE, serving, calendar, clock).run), asyncio.timeout(PATIENCE):
        await seen.wait()

    assert serving.ready
    waits = clock.slept[: clock.slept.index(LOOK_SECONDS)]
    assert len(waits) == 5
    assert max(waits) < LOOK_SECONDS


@pytest.fixture
def pairs(calendar):
    return [certificates.renewed(TlsMaterial.of({}), PLACE.names, calendar.now) for _ in range(2)]


async def test_files_are_followed_and_half_a_change_is_waited_out(tmp_path, serving, port, pairs):
    files = CertificateFiles(tmp_path / "tls.crt", tmp_path / "tls.key", serving)
    first, second = pairs

    def write(certificate, key):
        (tmp_path / "tls.crt").write_bytes(certificate)
        (tmp_path / "tls.key").write_bytes(key)
        files.look()

    files.look()
    assert not serving.ready
    write(first.serving.certificate, first.serving.key)
    write(second.serving.certificate, first.serving.key)
    async with connected(port, first.authorities) as old:
        write(second.serving.certificate, second.serving.key)
        async with connected(port, second.authorities) as new:
            for client in (old, new):
                assert (await client.request("GET", "/readyz"))[0] == 200
    (tmp_path / "tls.key").unlink()
    files.look()
    async with connected(port, second.authorities) as still:
        assert (await still.request("GET", "/readyz"))[0] == 200


def test_a_pair_that_does_not_match_is_refused_and_named(serving, pairs):
    first, second = pairs
    serving.install(first.serving)

    with pytest.raises(CertificateError, match="cannot be used"):
        serving.install(KeyPair(second.serving.certificate, first.serving.key))
    assert serving.install(first.serving) is False
