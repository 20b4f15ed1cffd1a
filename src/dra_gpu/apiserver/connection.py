"""Where the API server is and how we prove who we are: from a kubeconfig or from a pod's service account.

Promises: nothing secret is kept longer than a minute past its replacement. The token and the CA bundle are files
that the kubelet swaps while we run (bound tokens live an hour), so :class:`Credentials` reads them again when they
changed, at most once per `REREAD_SECONDS`, and at once when the server refuses them.
"""

import base64
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dra_gpu.apiserver.clock import Clock, SystemClock

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REREAD_SECONDS = 60.0  # the kubelet refreshes a token at 80 % of its life; a minute is far inside the rest


class ConnectionConfigError(Exception):
    """The kubeconfig or the service account directory cannot be used. The message names the file and the remedy."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One API server and one identity. Files win over inline data.

    Attributes:
        server: URL, such as `https://10.0.0.1:443`.
        ca_file: PEM bundle that signs the server's certificate; re-read when it changes.
        ca_data: the same inline.
        token_file: bearer token; re-read when it changes.
        token: the same inline.
        client_cert_file, client_key_file: PEM files of a client certificate; re-read when they change.
        client_cert_data, client_key_data: the same inline.
        tls_server_name: name to expect in the certificate instead of the host's.
        insecure: do not verify the server (kubeconfig's `insecure-skip-tls-verify`).
        namespace: the one that a kubeconfig's context names; empty where it names none.
    """

    server: str
    ca_file: Path | None = None
    ca_data: bytes | None = None
    token_file: Path | None = None
    token: str | None = None
    client_cert_file: Path | None = None
    client_key_file: Path | None = None
    client_cert_data: bytes | None = None
    client_key_data: bytes | None = None
    tls_server_name: str | None = None
    insecure: bool = False
    namespace: str = ""

    @property
    def host(self) -> str:
        """Host to connect to."""
        return urlsplit(self.server).hostname or ""

    @property
    def port(self) -> int:
        """Port to connect to."""
        parts = urlsplit(self.server)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def is_tls(self) -> bool:
        """The server speaks TLS."""
        return urlsplit(self.server).scheme == "https"

    @property
    def base_path(self) -> str:
        """Path in front of every API path, for servers behind a proxy."""
        return urlsplit(self.server).path.rstrip("/")


def in_cluster(directory: Path = SERVICE_ACCOUNT_DIR, environ: dict[str, str] | None = None) -> Connection:
    """Return the connection of a pod's service account.

    Raises:
        ConnectionConfigError: the environment or the files of a pod are not there.
    """
    values = os.environ if environ is None else environ
    host, port = values.get("KUBERNETES_SERVICE_HOST", ""), values.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConnectionConfigError(
            "KUBERNETES_SERVICE_HOST is not set, so this is not a pod: give --kubeconfig with the path of a kubeconfig"
        )
    for name in ("token", "ca.crt"):
        if not (directory / name).exists():
            raise ConnectionConfigError(
                f"{directory / name} is missing: let the pod mount its ServiceAccount (automountServiceAccountToken)"
            )
    bracketed = f"[{host}]" if ":" in host else host
    return Connection(f"https://{bracketed}:{port}", ca_file=directory / "ca.crt", token_file=directory / "token")


def from_kubeconfig(path: Path, context: str | None = None) -> Connection:
    """Return the connection of a kubeconfig's current (or the named) context.

    Relative paths in it are relative to the file.

    Raises:
        ConnectionConfigError: unreadable, incomplete, or it wants an `exec` plugin, which this driver does not run.
    """
    import yaml  # only whoever has a kubeconfig pays for the parser; a pod has none

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConnectionConfigError(
            f"kubeconfig {path} does not exist; set KUBECONFIG or --kubeconfig to the path of one"
        ) from error
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConnectionConfigError(f"kubeconfig {path} cannot be read: {error}; give a readable YAML file") from error
    if not isinstance(document, dict):
        raise ConnectionConfigError(f"kubeconfig {path} is empty or not a mapping; give one that kubectl accepts")
    wanted = context or str(document.get("current-context") or "")
    chosen = _entry(path, document, "contexts", "context", wanted)
    cluster = _entry(path, document, "clusters", "cluster", str(chosen.get("cluster") or ""))
    user = _entry(path, document, "users", "user", str(chosen.get("user") or "")) if chosen.get("user") else {}
    for unsupported in ("exec", "auth-provider", "username"):
        if user.get(unsupported):
            raise ConnectionConfigError(
                f"kubeconfig {path}: user {chosen.get('user')!r} wants {unsupported!r}, which is not supported here; "
                "use tokenFile, token or a client certificate"
            )
    if not cluster.get("server"):
        raise ConnectionConfigError(f"kubeconfig {path}: cluster {chosen.get('cluster')!r} has no server; add its URL")
    return Connection(
        server=str(cluster["server"]),
        ca_file=_file(path, cluster.get("certificate-authority")),
        ca_data=_data(path, "certificate-authority-data", cluster),
        token_file=_file(path, user.get("tokenFile")),
        token=str(user["token"]) if user.get("token") else None,
        client_cert_file=_file(path, user.get("client-certificate")),
        client_key_file=_file(path, user.get("client-key")),
        client_cert_data=_data(path, "client-certificate-data", user),
        client_key_data=_data(path, "client-key-data", user),
        tls_server_name=str(cluster["tls-server-name"]) if cluster.get("tls-server-name") else None,
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        namespace=str(chosen.get("namespace") or ""),
    )


def _entry(path: Path, document: dict[str, object], section: str, key: str, name: str) -> dict[str, object]:
    entries = document.get(section)
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(key), dict):
            return dict(entry[key])
    raise ConnectionConfigError(f"kubeconfig {path} has no {key} named {name!r}; check current-context and {section}")


def _file(config: Path, value: object) -> Path | None:
    return config.parent / str(value) if value else None


def _data(config: Path, key: str, entry: dict[str, object]) -> bytes | None:
    if not entry.get(key):
        return None
    try:
        return base64.b64decode(str(entry[key]), validate=True)
    except ValueError as error:
        raise ConnectionConfigError(f"kubeconfig {config}: {key} is not base64: {error}") from error


class Credentials:
    """The present token and TLS settings of a connection.

    Reads files of a few kilobytes on the calling thread (they lie on tmpfs), at most once a minute.
    """

    def __init__(self, connection: Connection, clock: Clock | None = None) -> None:
        self._connection = connection
        self._clock = clock or SystemClock()
        self._files = tuple(
            path
            for path in (
                connection.ca_file,
                connection.token_file,
                connection.client_cert_file,
                connection.client_key_file,
            )
            if path is not None
        )
        self._contents = self._read()
        self._read_at = self._clock.now()
        self._context: ssl.SSLContext | None = None

    @property
    def connection(self) -> Connection:
        """What these are the credentials of."""
        return self._connection

    def authorization(self) -> str | None:
        """Return the value of the Authorization header; None for an anonymous or certificate identity."""
        self._refresh()
        if self._connection.token_file is not None:
            token = self._contents.get(self._connection.token_file, b"").decode("utf-8", "replace").strip()
        else:
            token = self._connection.token or ""
        return f"Bearer {token}" if token else None

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings for a new connection; None for plain HTTP. A new object whenever a file changed.

        Raises:
            ConnectionConfigError: the CA bundle or the client certificate is not PEM, or is missing.
        """
        if not self._connection.is_tls:
            return None
        self._refresh()
        if self._context is None:
            self._context = self._build_context()
        return self._context

    def reload(self) -> bool:
        """Read the files now, because the server refused what we have; tell whether anything changed."""
        self._read_at = self._clock.now()
        contents = self._read()
        if contents == self._contents:
            return False
        tls_changed = any(
            contents.get(path) != self._contents.get(path)
            for path in self._files
            if path != self._connection.token_file
        )
        self._contents = contents
        if tls_changed:
            self._context = None
        return True

    def _refresh(self) -> None:
        if self._files and self._clock.now() - self._read_at >= REREAD_SECONDS:
            self.reload()

    def _read(self) -> dict[Path, bytes]:
        """Read all files. One that is missing just now (swapped, or not yet mounted) reads as what it was before."""
        contents: dict[Path, bytes] = {}
        before: dict[Path, bytes] = getattr(self, "_contents", {})
        for path in self._files:
            try:
                contents[path] = path.read_bytes()
            except OSError:
                contents[path] = before.get(path, b"")
        return contents

    def _build_context(self) -> ssl.SSLContext:
        connection = self._connection
        bundle = self._contents[connection.ca_file] if connection.ca_file is not None else connection.ca_data
        if connection.ca_file is not None and not bundle:
            raise ConnectionConfigError(
                f"{connection.ca_file} is missing or empty: mount the cluster's CA bundle there"
            )
        try:
            context = ssl.create_default_context(cadata=bundle.decode("ascii") if bundle else None)
            if connection.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._load_client_certificate(context)
        except (ssl.SSLError, ValueError, OSError) as error:
            raise ConnectionConfigError(
                f"TLS files for {connection.server} cannot be used ({connection.ca_file or 'inline CA'}): {error}; "
                "give PEM files"
            ) from error
        return context

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        connection = self._connection
        if connection.client_cert_file is not None and connection.client_key_file is not None:
            context.load_cert_chain(connection.client_cert_file, connection.client_key_file)
        elif connection.client_cert_data and connection.client_key_data:
            # ssl takes files only; this one is readable by us alone and gone before the function returns.
            with tempfile.NamedTemporaryFile() as file:
                file.write(connection.client_cert_data + b"\n" + connection.client_key_data)
                file.flush()
                context.load_cert_chain(file.name)
