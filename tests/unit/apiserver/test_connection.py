"""Where the server is and who we are, read from the files that say so."""

from pathlib import Path

import pytest

from dra_gpu.apiserver.connection import Connection, ConnectionConfigError, Credentials, from_kubeconfig, in_cluster
from tests.unit.apiserver.manual_clock import ManualClock

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: main
contexts:
- {name: main, context: {cluster: here, user: me}}
- {name: other, context: {cluster: there, user: me}}
clusters:
- {name: here, cluster: {server: "https://10.0.0.1:6443", certificate-authority: pki/ca.crt}}
- {name: there, cluster: {server: "https://there.example/base/", insecure-skip-tls-verify: true}}
users:
- {name: me, user: {tokenFile: token}}
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_paths_in_a_kubeconfig_are_relative_to_it(tmp_path: Path) -> None:
    found = from_kubeconfig(write(tmp_path / "config", KUBECONFIG))
    assert found == Connection("https://10.0.0.1:6443", ca_file=tmp_path / "pki/ca.crt", token_file=tmp_path / "token")
    assert (found.host, found.port, found.is_tls, found.base_path) == ("10.0.0.1", 6443, True, "")


def test_another_context_can_be_named(tmp_path: Path) -> None:
    found = from_kubeconfig(write(tmp_path / "config", KUBECONFIG), "other")
    assert (found.host, found.port, found.base_path, found.insecure) == ("there.example", 443, "/base", True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty or not a mapping"),
        ("{", "cannot be read"),
        (KUBECONFIG.replace("current-context: main", "current-context: gone"), "no context named 'gone'"),
        (KUBECONFIG.replace("cluster: here,", "cluster: lost,"), "no cluster named 'lost'"),
        (
            KUBECONFIG.replace("tokenFile: token", "exec: {command: aws}"),
            "use tokenFile, token or a client certificate",
        ),
        (KUBECONFIG.replace('server: "https://10.0.0.1:6443", ', ""), "has no server"),
        (KUBECONFIG.replace("tokenFile: token", "client-key-data: '%%'"), "client-key-data is not base64"),
    ],
    ids=["nothing", "no YAML", "no such context", "no such cluster", "exec", "no server", "no base64"],
)
def test_an_unusable_kubeconfig_is_refused_with_its_name_and_the_reason(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(ConnectionConfigError, match=complaint) as raised:
        from_kubeconfig(write(tmp_path / "config", text))
    assert str(tmp_path / "config") in str(raised.value)


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectionConfigError, match="nowhere"):
        from_kubeconfig(tmp_path / "nowhere")


def test_a_pod_finds_its_server_in_the_environment(tmp_path: Path) -> None:
    write(tmp_path / "token", "t")
    write(tmp_path / "ca.crt", "c")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    found = in_cluster(tmp_path, environ)
    assert (found.server, found.host, found.port) == ("https://[fd00::1]:6443", "fd00::1", 6443)
    assert (found.ca_file, found.token_file) == (tmp_path / "ca.crt", tmp_path / "token")


def test_outside_a_pod_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectionConfigError, match="--kubeconfig"):
        in_cluster(tmp_path, {})
    with pytest.raises(ConnectionConfigError, match="token is missing"):
        in_cluster(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


def test_a_token_file_is_read_again_after_a_minute_and_not_before(tmp_path: Path) -> None:
    clock, token = ManualClock(), write(tmp_path / "token", "first\n")
    credentials = Credentials(Connection("http://x", token_file=token), clock)
    write(token, "second\n")
    clock.time = 59.0
    assert credentials.authorization() == "Bearer first"
    clock.time = 60.0
    assert credentials.authorization() == "Bearer second"


def test_a_token_file_that_is_missing_for_a_moment_keeps_the_token(tmp_path: Path) -> None:
    token = write(tmp_path / "token", "first")
    credentials = Credentials(Connection("http://x", token_file=token))
    token.unlink()
    assert credentials.reload() is False
    assert credentials.authorization() == "Bearer first"


def test_no_token_means_no_header() -> None:
    assert Credentials(Connection("http://x")).authorization() is None


def test_plain_http_needs_no_tls_settings() -> None:
    assert Credentials(Connection("http://x")).ssl_context() is None


def test_a_bundle_that_is_not_pem_is_named(tmp_path: Path) -> None:
    bundle = write(tmp_path / "ca.crt", "nonsense")
    with pytest.raises(ConnectionConfigError, match=r"ca\.crt"):
        Credentials(Connection("https://x", ca_file=bundle)).ssl_context()


def test_a_missing_bundle_does_not_fall_back_to_the_system_s_authorities(tmp_path: Path) -> None:
    with pytest.raises(ConnectionConfigError, match="missing or empty"):
        Credentials(Connection("https://x", ca_file=tmp_path / "ca.crt")).ssl_context()
