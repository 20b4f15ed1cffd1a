"""What a cluster has of the webhook, in an API server in memory: its configuration, and the Secret that it keeps."""

import base64

from tests.component.webhook.tls import PLACE

OTHERS = {
    "name": "others.example.com",
    "clientConfig": {"service": {"name": "other", "namespace": "dra-gpu"}, "caBundle": "b3RoZXI="},
    "sideEffects": "None",
}


def put_configuration(server):
    ours = {
        "name": "validate.dra-gpu.dev",
        "clientConfig": {"service": {"name": PLACE.service, "namespace": PLACE.namespace, "path": "/validate"}},
        "sideEffects": "None",
        "rules": [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"]}],
    }
    body = {"metadata": {"name": PLACE.configuration}, "webhooks": [ours, OTHERS]}
    server.put("validatingwebhookconfigurations", body)


def put_secret(server, data=None):
    server.put("secrets", {"metadata": {"name": PLACE.secret}, "type": "Opaque", "data": data or {}}, PLACE.namespace)


def configuration(server):
    (found,) = server.objects("validatingwebhookconfigurations")
    return found


def bundle(server):
    """Whom API servers trust; nobody before they were told."""
    return base64.b64decode(configuration(server)["webhooks"][0]["clientConfig"].get("caBundle", ""))


def secret(server):
    (found,) = server.objects("secrets", PLACE.namespace)
    return {name: base64.b64decode(value) for name, value in found["data"].items()}


def writes(server, plural):
    """How often a kind was written, by whatever verb."""
    verbs = ("create", "update", "patch", "delete")
    return [one.status for one in server.log.since(0) if one.resource == plural and one.verb in verbs]
