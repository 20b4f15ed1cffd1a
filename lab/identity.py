"""Gives a node plugin that runs as a host process the very rights it has as a pod: a token bound to a pod of its node.

A placeholder pod with the plugin's ServiceAccount is put on the node; a TokenRequest bound to it yields a token that
carries the node's name (Source: Kubernetes v1.37 pkg/serviceaccount/claims.go), which admission policy and
`associated-node:` verbs read.
"""

import uuid
from pathlib import Path

from lab.api import Api, ApiError, Json, path_of, wait_until
from lab.images import PAUSE
from lab.kubeconfig import write_kubeconfig
from lab.layout import Layout, Node

NAMESPACE = "dra-gpu"
SERVICE_ACCOUNT = "dra-gpu-node"
_TOKEN_SECONDS = 24 * 3600
_PLACEHOLDER_WITHIN_SECONDS = 120.0


def write_credentials(layout: Layout, api: Api, node: Node) -> None:
    """Write `token`, `ca.crt` and `kubeconfig` for the plugin of `node` into its credentials directory.

    The kubeconfig names the token's file, so that a new token is taken up without a restart. The rights themselves
    come from `deploy/rbac/node.yaml`, which must have been applied.

    Raises:
        TimeoutError: the placeholder pod does not come up.
    """
    token = node_token(api, node)
    directory = node.credentials_dir
    directory.mkdir(parents=True, exist_ok=True)
    _replace(directory / "token", token)
    _replace(directory / "ca.crt", layout.ca.read_text())
    write_kubeconfig(
        directory / "kubeconfig",
        server=f"https://{api.host}:{api.port}",
        ca=directory / "ca.crt",
        token_file=directory / "token",
    )


def node_token(api: Api, node: Node) -> str:
    """Return a new token of the plugin's ServiceAccount that is bound to the placeholder pod of `node`."""
    pod = _placeholder(api, node)
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "expirationSeconds": _TOKEN_SECONDS,
            "boundObjectRef": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod["metadata"]["name"],
                "uid": pod["metadata"]["uid"],
            },
        },
    }
    accounts = path_of("v1", "serviceaccounts", SERVICE_ACCOUNT, namespace=NAMESPACE, subresource="token")
    token: str = api.create(accounts, request)["status"]["token"]
    return token


def _placeholder(api: Api, node: Node) -> Json:
    name = f"placeholder-{node.name}"
    pods = path_of("v1", "pods", namespace=NAMESPACE)
    path = f"{pods}/{name}"
    if not api.exists(path):
        account = path_of("v1", "serviceaccounts", SERVICE_ACCOUNT, namespace=NAMESPACE)
        wait_until(
            f"ServiceAccount {NAMESPACE}/{SERVICE_ACCOUNT}", lambda: api.exists(account), _PLACEHOLDER_WITHIN_SECONDS
        )
        _create_unless_there(api, pods, _manifest(name, node))
    wait_until(
        f"pod {NAMESPACE}/{name} running",
        lambda: api.get(path).get("status", {}).get("phase") == "Running",
        _PLACEHOLDER_WITHIN_SECONDS,
    )
    return api.get(path)


def _create_unless_there(api: Api, pods: str, manifest: Json) -> None:
    try:
        api.create(pods, manifest)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise


def _manifest(name: str, node: Node) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "dra-gpu-node-placeholder"}},
        "spec": {
            # Not left to the scheduler: the token takes the node's name from here.
            "nodeName": node.name,
            "serviceAccountName": SERVICE_ACCOUNT,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "placeholder", "image": PAUSE, "imagePullPolicy": "Never"}],
        },
    }


def _replace(target: Path, text: str) -> None:
    """Write a secret atomically, readable by the owner alone."""
    fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    fresh.touch(mode=0o600)
    fresh.write_text(text)
    fresh.replace(target)
