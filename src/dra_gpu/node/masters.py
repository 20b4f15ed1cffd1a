"""Never two masters: while somebody else gives this node's GPUs away, this driver publishes nothing.

Somebody else is a device plugin (its resource stands in the node's allocatable) or another DRA driver that registers
our name with the kubelet; slices of our name that are not ours are the publisher's business. Two masters would give one
GPU to two pods, and neither would know. When the other is gone, publishing goes on by itself.
"""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from dra_gpu.api import quantity
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.backoff import Backoff
from dra_gpu.apiserver.clock import Clock, SystemClock
from dra_gpu.apiserver.kubernetes_api import KubernetesApi
from dra_gpu.apiserver.resources import NODES, Node
from dra_gpu.kubelet.foreign import ForeignRegistration, RegistrySearch

# A device plugin that is installed later shows within this time; a GET of one object costs the server little, and those
# of a thousand nodes that started together must not come together: each waits for between half and all of it.
LOOK_SECONDS = 10.0
SOONEST = 0.5
FIRST_RETRY_SECONDS = 0.5

_log = structlog.get_logger(__name__)


def find_master(
    node: Node, extended_resources: Collection[str], registrations: Collection[ForeignRegistration]
) -> str | None:
    """Return who else serves this node's GPUs and what to do about it, None when nobody does.

    Args:
        node: the Node object.
        extended_resources: names under which device plugins offer this vendor's GPUs.
        registrations: other drivers registered under our name.
    """
    for name in extended_resources:
        amount = node.status.allocatable.get(name, "0")
        if _is_positive(amount):
            return (
                f"a device plugin offers {amount} {name} on node {node.metadata.name}: remove it from this node, or "
                "this driver; together they would give one GPU to two pods"
            )
    return next((str(registration) for registration in registrations), None)


@dataclass(slots=True)
class Masters:
    """Looks for other masters, and tells when one comes or goes.

    Attributes:
        api: the API server.
        node_name: this node.
        search: finds foreign registrations with the kubelet.
        own_sockets: registration sockets of this instance.
        extended_resources: names under which device plugins offer this vendor's GPUs.
        on_master: told the master, or None when there is none; first when it is known, then at each change.
        on_trouble: told what a person has to act on, as an Event's reason and note.
        on_node: told the Node object at each look.
        clock: for the time between two looks.
    """

    api: KubernetesApi
    node_name: str
    search: RegistrySearch
    own_sockets: Collection[Path]
    extended_resources: Collection[str]
    on_master: Callable[[str | None], None]
    on_trouble: Callable[[str, str], None]
    on_node: Callable[[Node], None] = lambda _node: None
    clock: Clock = field(default_factory=SystemClock)
    _told: str | None = None
    _known: bool = False
    _complaint: str = ""

    async def run(self) -> None:
        """Look until cancelled."""
        retry = Backoff(FIRST_RETRY_SECONDS, LOOK_SECONDS)
        while True:
            try:
                node = await self.api.get(NODES, self.node_name)
            except errors.ApiError as error:
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    _log.warning("the Node object cannot be read; nothing is published before", reason=self._complaint)
                await self.clock.sleep(retry.next(error.retry_after))
                continue
            retry.reset()
            self._complaint = ""
            self.on_node(node)
            registrations = await self.search.foreign(self.own_sockets)
            self._tell(find_master(node, self.extended_resources, registrations))
            await self.clock.sleep(LOOK_SECONDS * random.uniform(SOONEST, 1))  # noqa: S311 - spreads load

    def _tell(self, master: str | None) -> None:
        if self._known and master == self._told:
            return
        self._known, self._told = True, master
        if master is not None:
            _log.error("another master holds this node's GPUs; nothing is published", reason=master)
            self.on_trouble("AnotherMaster", master)
        self.on_master(master)


def _is_positive(amount: str) -> bool:
    try:
        return quantity.parse(amount) > 0
    except quantity.InvalidQuantityError:
        return False
