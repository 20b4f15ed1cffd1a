"""A webhook over real TLS in this process, and an API server in memory."""

from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import Connection
from dra_gpu.webhook import certificates
from dra_gpu.webhook.app import Routes
from dra_gpu.webhook.certificates import TlsMaterial
from dra_gpu.webhook.http_server import HttpsServer, Limits
from dra_gpu.webhook.reviewer import Reviewer
from dra_gpu.webhook.serving import Serving
from dra_gpu_sim.apiserver.server import ApiServer
from tests.component.webhook.tls import PLACE, connected


class Counted:
    """What the webhook counted."""

    def __init__(self) -> None:
        self.reviews = []
        self.refusals = []
        self.expires = []
        self.dropped = 0

    def reviewed(self, kind, operation, outcome, seconds):
        assert seconds >= 0
        self.reviews.append((kind, operation, outcome.value))

    def refused(self, status):
        self.refusals.append(status)

    def hung_up(self):
        self.dropped += 1

    def certificate(self, expires):
        self.expires.append(expires)


class Webhook:
    """A webhook that serves, with a certificate of its own that is in no Secret."""

    def __init__(self, limits=None, **options) -> None:
        self.counted = Counted()
        self.material = certificates.renewed(TlsMaterial.of({}), PLACE.names, datetime.now(UTC))
        self.serving = Serving(self.counted.certificate)
        self.reviewer = Reviewer(self.counted, **options)
        self.routes = Routes(self.serving, {"/validate": self.reviewer.handle})
        self.server = HttpsServer(self.routes.handle, limits or Limits(), self.counted.refused, self.counted.hung_up)

    async def start(self):
        self.serving.install(self.material.serving)
        await self.server.start("127.0.0.1", 0, self.serving.context)

    async def stop(self):
        await self.server.stop(0)
        self.reviewer.close()

    def connected(self):
        return connected(self.server.port, self.material.authorities)


@pytest.fixture
def serving_webhook():
    """Return a context manager that serves as told."""

    @asynccontextmanager
    async def serve(limits=None, **options):
        webhook = Webhook(limits, **options)
        await webhook.start()
        try:
            yield webhook
        finally:
            await webhook.stop()

    return serve


@pytest.fixture
async def webhook(serving_webhook):
    async with serving_webhook() as one:
        yield one


@pytest.fixture
async def api_server():
    server = ApiServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def api(api_server):
    client = HttpKubernetesApi(Connection(api_server.url))
    yield client
    client.close()
