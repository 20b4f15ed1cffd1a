"""Keeps a certificate of our own: in a Secret, in the webhook configuration's caBundle, and in use.

Several replicas do the same at once. Whoever finds that something is due writes it, under the version that was read;
the others lose that race and take what the winner wrote. What is announced is what the Secret holds: the configuration
is read before the Secret and written under its own version, so that an older bundle never replaces a newer one.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import structlog

from dra_gpu.api import resource_v1
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.backoff import Backoff
from dra_gpu.apiserver.clock import Clock, SystemClock
from dra_gpu.apiserver.kubernetes_api import KubernetesApi
from dra_gpu.apiserver.resources import Resource
from dra_gpu.webhook import certificates
from dra_gpu.webhook.certificates import TlsMaterial
from dra_gpu.webhook.serving import CertificateError, Serving

LOOK_SECONDS = 60.0  # far inside certificates.OVERLAP
_ATTEMPTS = 5  # lost races in a row; each means that another replica has made progress
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 60.0

_log = structlog.get_logger(__name__)


class Secret(msgspec.Struct, frozen=True, rename="camel"):
    """`v1` Secret: values in base64."""

    metadata: resource_v1.ObjectMeta = resource_v1.ObjectMeta()
    data: dict[str, str] = {}


class WebhookConfiguration(msgspec.Struct, frozen=True, rename="camel"):
    """`admissionregistration.k8s.io/v1` ValidatingWebhookConfiguration; the list is written back whole, as it is."""

    metadata: resource_v1.ObjectMeta = resource_v1.ObjectMeta()
    webhooks: list[dict[str, Any]] = []


SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True, type=Secret)
CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
    type=WebhookConfiguration,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the certificate belongs.

    Attributes:
        namespace: of the Secret and the Service.
        secret: name of the Secret.
        service: name of the Service, under which API servers call.
        configuration: name of the ValidatingWebhookConfiguration.
    """

    namespace: str
    secret: str
    service: str
    configuration: str

    @property
    def names(self) -> Sequence[str]:
        """The DNS names of the Service; the first is the one that API servers use."""
        return (f"{self.service}.{self.namespace}.svc", f"{self.service}.{self.namespace}", self.service)


class LostRaceError(Exception):
    """Another replica was faster, several times in a row."""


class NoSecretError(Exception):
    """The Secret is not there, and only the administrator may make one."""


class Rotation:
    """Keeps the certificate for ever.

    Args:
        api: with the right to read and change that Secret and that configuration.
        place: where both are.
        serving: takes the certificate.
        now: the present time, with a time zone.
        clock: for the time between two looks.
    """

    def __init__(
        self,
        api: KubernetesApi,
        place: Place,
        serving: Serving,
        now: Callable[[], datetime],
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._place = place
        self._serving = serving
        self._now = now
        self._clock = clock or SystemClock()

    async def run(self) -> None:
        """Look at once, then every minute; after a failure sooner at first, then less and less often."""
        backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
        while True:
            try:
                await self.look()
            except (errors.ApiError, LostRaceError, NoSecretError, CertificateError) as error:
                wait = backoff.next(getattr(error, "retry_after", None))
                _log.error("the certificate is not looked after", retry_in=round(wait, 1), reason=str(error))
                await self._clock.sleep(wait)
            else:
                backoff.reset()
                await self._clock.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Do what is due now.

        Raises:
            errors.ApiError: the Secret or the configuration cannot be read or written.
            LostRaceError: other replicas were faster, again and again.
            NoSecretError: there is no Secret, and no right to make one.
            CertificateError: what was just made cannot be used.
        """
        for _ in range(_ATTEMPTS):
            try:
                configuration = await self._api.get(CONFIGURATIONS, self._place.configuration)
                material = await self._material()
                await self._announce(configuration, material)
            except errors.ConflictError:
                continue
            self._serving.install(material.serving)
            return
        raise LostRaceError(f"the certificate was changed by others {_ATTEMPTS} times in a row")

    async def _material(self) -> TlsMaterial:
        """Return what the Secret holds, after what is due was written to it."""
        place = self._place
        try:
            secret = await self._api.get(SECRETS, place.secret, place.namespace)
        except errors.NotFoundError:
            secret = None
        found = TlsMaterial.of(_decoded(secret.data if secret is not None else {}))
        wanted = certificates.renewed(found, place.names, self._now())
        if wanted is found:
            return found
        body: dict[str, object] = {"data": {name: _encoded(value) for name, value in wanted.data().items()}}
        if secret is None:
            head = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": place.secret}}
            try:
                await self._api.create(SECRETS, {**head, **body}, place.namespace)
            except (
                errors.ForbiddenError
            ) as error:  # a right to create has no names, so that it would be one to any Secret
                raise NoSecretError(
                    f"Secret {place.namespace}/{place.secret} is not there, and the webhook may not make one: do so by "
                    f"`helm upgrade`, or `kubectl create secret generic {place.secret} -n {place.namespace}`; "
                    "it is filled by itself"
                ) from error
        else:
            version = {"metadata": {"resourceVersion": secret.metadata.resource_version}}
            await self._api.patch(SECRETS, {**version, **body}, place.secret, place.namespace)
        _log.info("the certificate was renewed", secret=f"{place.namespace}/{place.secret}")
        return wanted

    async def _announce(self, configuration: WebhookConfiguration, material: TlsMaterial) -> None:
        """Tell API servers whom to trust."""
        bundle = _encoded(material.authorities)
        webhooks = [
            {**one, "clientConfig": {**one["clientConfig"], "caBundle": bundle}} if self._is_ours(one) else one
            for one in configuration.webhooks
        ]
        if webhooks == configuration.webhooks:
            return
        version = {"resourceVersion": configuration.metadata.resource_version}
        body = {"metadata": version, "webhooks": webhooks}
        await self._api.patch(CONFIGURATIONS, body, self._place.configuration)
        _log.info("the authorities were announced", configuration=self._place.configuration)

    def _is_ours(self, webhook: dict[str, Any]) -> bool:
        client = webhook.get("clientConfig")
        service = client.get("service") if isinstance(client, dict) else None
        wanted = (self._place.service, self._place.namespace)
        return isinstance(service, dict) and (service.get("name"), service.get("namespace")) == wanted


def _decoded(data: dict[str, str]) -> dict[str, bytes]:
    """Return the values of a Secret; one that is no base64 is none."""
    values: dict[str, bytes] = {}
    for name, text in data.items():
        try:
            values[name] = base64.b64decode(text, validate=True)
        except ValueError:
            values[name] = b""
    return values


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")
