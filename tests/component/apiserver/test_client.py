"""The shipped client: typed errors with remedies, deadlines, selectors, preconditions, credentials that rotate."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from dra_gpu.apiserver import errors
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import Connection, Credentials, from_kubeconfig
from dra_gpu.apiserver.kubernetes_api import Selection, WatchEvent, WatchOptions
from dra_gpu.apiserver.resources import NODES, RESOURCE_CLAIMS, Node
from dra_gpu_sim.apiserver.server import ApiServer, ServerOptions

from .conftest import SkippingClock


@pytest.fixture
async def guarded() -> AsyncIterator[ApiServer]:
    """A server that accepts one token."""
    server = ApiServer(ServerOptions(tokens=["first"]))
    await server.start()
    server.put("nodes", {"metadata": {"name": "a"}})
    yield server
    await server.stop()


def tls_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


async def test_an_object_is_read_into_its_struct(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.put("nodes", {"metadata": {"name": "a"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}})
    assert (await api.get(NODES, "a")).status.allocatable == {"nvidia.com/gpu": "8"}


async def test_a_list_can_be_narrowed_by_labels(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.put("nodes", {"metadata": {"name": "a", "labels": {"zone": "x"}}})
    server.put("nodes", {"metadata": {"name": "b", "labels": {"zone": "y"}}})
    listing = await api.list(NODES, Selection(label_selector="zone in (y,z)"))
    assert [one.metadata.name for one in listing.items] == ["b"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequestError),
        (401, errors.UnauthorizedError),
        (403, errors.ForbiddenError),
        (404, errors.NotFoundError),
        (409, errors.ConflictError),
        (410, errors.GoneError),
        (422, errors.InvalidError),
        (429, errors.TooManyRequestsError),
        (500, errors.UnavailableError),
        (503, errors.UnavailableError),
        (504, errors.UnavailableError),
    ],
)
async def test_each_status_is_an_error_of_its_own_that_names_verb_resource_object_and_remedy(
    server: ApiServer, api: HttpKubernetesApi, status: int, kind: type[errors.ApiError]
) -> None:
    server.faults.fail(status=status, message="the server says so")
    with pytest.raises(kind) as raised:
        await api.get(RESOURCE_CLAIMS, "c", "default")
    text = str(raised.value)
    assert text.startswith(f"cannot get resourceclaims.resource.k8s.io default/c: {status}")
    assert "the server says so" in text
    assert kind.remedy in text


async def test_a_taken_name_is_told_from_a_stale_version(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.put("nodes", {"metadata": {"name": "a"}})
    with pytest.raises(errors.AlreadyExistsError):
        await api.create(NODES, {"metadata": {"name": "a"}})
    with pytest.raises(errors.ConflictError) as raised:
        await api.update(NODES, {"metadata": {"name": "a", "resourceVersion": "999"}}, "a")
    assert not isinstance(raised.value, errors.AlreadyExistsError)


async def test_retry_after_is_part_of_the_error(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.faults.fail(status=429, headers={"Retry-After": "7"})
    with pytest.raises(errors.TooManyRequestsError) as raised:
        await api.get(NODES, "a")
    assert raised.value.retry_after == 7.0


async def test_a_request_ends_at_its_deadline(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.faults.delay(seconds=30)
    with pytest.raises(errors.DeadlineError, match=r"no answer within 0\.05 s"):
        await api.get(NODES, "a", deadline=0.05)


async def test_a_refused_connection_says_where_it_went(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.refuse()
    with pytest.raises(errors.UnavailableError, match=f"no connection to {server.url}"):
        await api.get(NODES, "a")


async def test_a_connection_that_the_server_closed_while_idle_is_replaced_silently(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    server.put("nodes", {"metadata": {"name": "a"}})
    await api.get(NODES, "a")
    server.cut_connections()
    assert (await api.get(NODES, "a")).metadata.name == "a"


async def test_a_connection_that_breaks_inside_an_answer_is_an_error(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.faults.delay(seconds=30)
    request = asyncio.ensure_future(api.get(NODES, "a"))
    while not server.faults.rules or server.faults.rules[0].count:
        await asyncio.sleep(0)
    server.cut_connections()
    with pytest.raises(errors.UnavailableError):
        await request


async def test_many_requests_at_once_share_few_connections(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.put("nodes", {"metadata": {"name": "a"}})
    await asyncio.gather(*(api.get(NODES, "a") for _ in range(100)))
    assert len(server.log.since(verb="get")) == 100
    assert server.open_connections <= 8


async def test_a_deletion_with_another_uid_is_refused(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.put("nodes", {"metadata": {"name": "a"}})
    with pytest.raises(errors.ConflictError):
        await api.delete(NODES, "a", uid="another")
    assert len(server.objects("nodes")) == 1


async def test_a_merge_patch_of_the_status_leaves_the_rest(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.put("resourceclaims", {"metadata": {"name": "c"}, "spec": {"devices": {}}}, "default")
    patch = {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}
    await api.patch(RESOURCE_CLAIMS, patch, "c", "default", subresource="status")
    (claim,) = server.objects("resourceclaims")
    assert claim["status"]["reservedFor"][0]["name"] == "p"
    assert claim["spec"] == {"devices": {}}


async def test_an_apply_adds_the_entry_of_a_keyed_list_and_keeps_the_others(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    def entry(device: str) -> dict[str, object]:
        return {"driver": "gpu.nvidia.com", "pool": "n", "device": device}

    server.put("resourceclaims", {"metadata": {"name": "c"}, "spec": {}, "status": {"devices": [entry("a")]}}, "ns")
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "status": {"devices": [entry("b")]}}
    await api.apply(RESOURCE_CLAIMS, body, "c", "ns", subresource="status")
    (claim,) = server.objects("resourceclaims")
    assert [one["device"] for one in claim["status"]["devices"]] == ["a", "b"]


async def test_a_watch_delivers_every_event_after_its_version(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.put("nodes", {"metadata": {"name": "old"}})
    version = (await api.list(NODES)).resource_version
    server.put("nodes", {"metadata": {"name": "new"}})
    seen: list[WatchEvent[Node]] = []
    await api.watch(NODES, Selection(), WatchOptions(version, timeout_seconds=0), seen.append)
    assert [(event.type, event.object and event.object.metadata.name) for event in seen] == [("ADDED", "new")]


@pytest.mark.case("C65")
async def test_a_rotated_token_is_read_at_once_when_the_old_one_is_refused(guarded: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    api = HttpKubernetesApi(Connection(guarded.url, token_file=token))
    await api.get(NODES, "a")
    guarded.tokens = {"second"}
    token.write_text("second\n")
    results = await asyncio.gather(*(api.get(NODES, "a") for _ in range(5)))
    api.close()
    assert [one.metadata.name for one in results] == ["a"] * 5


async def test_a_watch_that_meets_a_rotated_token_reads_it_too(guarded: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    api = HttpKubernetesApi(Connection(guarded.url, token_file=token))
    version = (await api.list(NODES)).resource_version
    guarded.tokens = {"second"}
    token.write_text("second")
    await api.watch(NODES, Selection(), WatchOptions(version, timeout_seconds=0), lambda _event: None)
    api.close()
    assert guarded.log.since(verb="watch")[-1].status == 200


async def test_a_token_that_changed_on_disk_is_used_within_a_minute_without_a_refusal(
    guarded: ApiServer, tmp_path: Path
) -> None:
    token, clock = tmp_path / "token", SkippingClock()
    token.write_text("first")
    api = HttpKubernetesApi(Credentials(Connection(guarded.url, token_file=token), clock))
    guarded.tokens = {"first", "second"}
    token.write_text("second")
    clock.time += 61
    guarded.tokens = {"second"}
    mark = guarded.log.count
    await api.get(NODES, "a")
    api.close()
    assert [record.status for record in guarded.log.since(mark)] == [200]


async def test_a_token_that_is_simply_wrong_is_an_error_after_one_request(guarded: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("wrong")
    api = HttpKubernetesApi(Connection(guarded.url, token_file=token))
    with pytest.raises(errors.UnauthorizedError, match="check the token file"):
        await api.get(NODES, "a")
    api.close()
    assert len(guarded.log.since()) == 1


async def test_a_new_certificate_authority_is_read_when_verification_fails(tmp_path: Path) -> None:
    old, new, bundle = trustme.CA(), trustme.CA(), tmp_path / "ca.crt"
    old.cert_pem.write_to_path(bundle)
    server = ApiServer()
    await server.start(ssl_context=tls_context(old))
    server.put("nodes", {"metadata": {"name": "a"}})
    api = HttpKubernetesApi(Connection(server.url, ca_file=bundle))
    await api.get(NODES, "a")
    server.change_certificate(tls_context(new))
    server.refuse()
    await server.reopen()
    with pytest.raises(errors.UnavailableError, match="certificate"):
        await api.get(NODES, "a")
    new.cert_pem.write_to_path(bundle)
    assert (await api.get(NODES, "a")).metadata.name == "a"
    api.close()
    await server.stop()


async def test_a_kubeconfig_with_inline_data_and_a_token_file_reaches_a_tls_server(tmp_path: Path) -> None:
    import base64

    authority = trustme.CA()
    server = ApiServer(ServerOptions(tokens=["t"]))
    await server.start(ssl_context=tls_context(authority))
    server.put("nodes", {"metadata": {"name": "a"}})
    (tmp_path / "token").write_text("t")
    config = tmp_path / "kubeconfig"
    config.write_text(
        f"""
apiVersion: v1
kind: Config
current-context: main
contexts: [{{name: main, context: {{cluster: here, user: me}}}}]
clusters:
- name: here
  cluster:
    server: {server.url}
    certificate-authority-data: {base64.b64encode(authority.cert_pem.bytes()).decode()}
users: [{{name: me, user: {{tokenFile: token}}}}]
"""
    )
    api = HttpKubernetesApi(from_kubeconfig(config))
    assert (await api.get(NODES, "a")).metadata.name == "a"
    api.close()
    await server.stop()
