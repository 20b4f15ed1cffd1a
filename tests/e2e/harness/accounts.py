"""The accounts of the driver's processes: clients with their tokens, and what the API server lets them do."""

from pathlib import Path

from lab.api import Api, path_of
from lab.identity import NAMESPACE
from lab.kubeconfig import write_kubeconfig

from tests.e2e.harness.cluster import Cluster


def account_token(cluster: Cluster, account: str, namespace: str = NAMESPACE) -> str:
    """Return a token of a ServiceAccount that is bound to nothing, as a pod of a Deployment has one."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = path_of("v1", "serviceaccounts", account, namespace=namespace, subresource="token")
    token: str = cluster.api.create(path, request)["status"]["token"]
    return token


def account_api(cluster: Cluster, account: str, namespace: str = NAMESPACE) -> Api:
    """Return a client with the rights of a ServiceAccount."""
    return cluster.api_with(account_token(cluster, account, namespace))


def account_kubeconfig(cluster: Cluster, account: str, target: Path) -> Path:
    """Write a kubeconfig for a process that runs with the rights of a ServiceAccount of the driver."""
    api = account_api(cluster, account)
    write_kubeconfig(target, server=f"https://{api.host}:{api.port}", ca=api.ca, token=api.token)
    return target


def rights_of(api: Api, namespace: str = NAMESPACE) -> dict[str, set[str]]:
    """Return what the owner of a token may do with resources in a namespace, as the API server itself sees it.

    By `resource.group`, with `/name` behind it where the right is for one object of that name.
    """
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    status = api.create(path_of("authorization.k8s.io/v1", "selfsubjectrulesreviews"), review)["status"]
    assert not status["incomplete"], status
    found: dict[str, set[str]] = {}
    for rule in status["resourceRules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames") or [""]:
                    what = f"{resource}.{group}".rstrip(".") + (f" {name}" if name else "")
                    found.setdefault(what, set()).update(rule["verbs"])
    return found
