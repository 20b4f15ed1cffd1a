"""Decides what stands in the ResourceSlices of this node, from everything that has a say in it.

The GPUs say what there is, the journal what claims have given back; the kubelet's registration says when; another
master says that nothing may be; the publisher lock says which of two instances writes: the one that registered last, so
that an upgrade changes the slices once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from dra_gpu.apiserver.publisher import SlicePublisher
from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.publisher_lock import PublisherLock
from dra_gpu.claims.resize.state import ShareKey
from dra_gpu.inventory.amounts import NOTHING, Amounts
from dra_gpu.inventory.given_back import with_given_back
from dra_gpu.inventory.slices import SliceContent
from dra_gpu.kubelet.registration import RegistrationReport

Offers = Callable[[], Awaitable[Mapping[ShareKey, Amounts]]]

LOCK_RETRY_SECONDS = 2.0  # nothing is published meanwhile, and what is published stays

_log = structlog.get_logger(__name__)


class Publishing:
    """Joins GPUs, registration, other masters and the lock to one publisher.

    Args:
        publisher: writes the slices; its `may_publish` asks `lock`.
        lock: which instance may write.
        offers: returns what is published beyond the hardware, from the journal: whoever had the lock before wrote it.
    """

    def __init__(
        self,
        publisher: SlicePublisher,
        lock: PublisherLock,
        offers: Callable[[], Awaitable[Mapping[ShareKey, Amounts]]],
    ) -> None:
        self._publisher = publisher
        self._lock = lock
        self._offers = offers
        self._offered: dict[ShareKey, Amounts] | None = None
        self._sent: tuple[tuple[SliceContent, ...], Mapping[ShareKey, Amounts]] = (), {}
        self._at_server: Mapping[ShareKey, Amounts] | None = None
        self.on_acknowledged: Callable[[], None] = lambda: None
        """Called whenever the server is found to have what is offered."""
        self._contents: tuple[SliceContent, ...] | None = None
        self._master: str | None = None
        self._master_known = False
        self._registered = asyncio.Event()

    @property
    def in_charge(self) -> bool:
        """Whether this instance writes the slices, and knows all that stands in them."""
        return self._lock.held and self._offered is not None

    @property
    def problem(self) -> str:
        """What keeps the slices from being as they should be; empty when they are, or are another instance's affair."""
        if not self._registered.is_set():
            return "the kubelet has not registered this driver yet"
        if not self._lock.held or self._master is not None:
            return ""
        if self._contents is None or not self._master_known:
            return "it is not known yet what this node offers"
        return "" if self._publisher.settled.is_set() else "the ResourceSlices are not yet what they should be"

    def set_contents(self, contents: tuple[SliceContent, ...]) -> None:
        """Take what the GPUs of the node come to."""
        self._contents = contents
        self._decide()

    def offer(self, key: ShareKey, amounts: Amounts) -> None:
        """Publish so much beyond the hardware for a share; nothing while another instance is in charge."""
        if self._offered is None or self._offered.get(key, NOTHING) == amounts:
            return
        self._offered[key] = amounts
        self._decide()

    def at_server(self, key: ShareKey) -> Amounts | None:
        """Return what the server has beyond the hardware for a share; None while that is not known."""
        return None if self._at_server is None else self._at_server.get(key, NOTHING)

    def acknowledged(self, contents: tuple[SliceContent, ...]) -> None:
        """Take what the server is known to hold: exactly this; nothing of ours if it is empty."""
        sent, offered = self._sent
        known = {} if not contents else offered if contents == sent else None
        if known is not None and known != self._at_server:
            self._at_server = known
            self.on_acknowledged()

    def set_master(self, master: str | None) -> None:
        """Take who else serves this node's GPUs; None is nobody. Nothing is published before this is known."""
        self._master, self._master_known = master, True
        self._decide()

    def set_registration(self, report: RegistrationReport) -> None:
        """Take what the kubelet says of this instance."""
        if report.registered:
            self._lock.registered()
            self._registered.set()
        self._publisher.set_registered(report.registered)

    async def hold_lock(self) -> None:
        """Take part in who publishes, from the first registration on; the lock is free again when cancelled.

        An instance that the kubelet does not know yet must not take the slices away from one that it does.
        """
        await self._registered.wait()
        try:
            while True:
                try:
                    await self._publish_until_wanted()
                except (
                    OSError,
                    JournalError,
                ) as error:  # a full disk, or a directory that somebody took away: it may come back
                    _log.error("the publisher lock cannot be had; it is tried again", reason=str(error))
                    await asyncio.sleep(LOCK_RETRY_SECONDS)
        finally:
            self._lock.close()

    async def _publish_until_wanted(self) -> None:
        try:
            await self._lock.acquire()
            self._offered = dict(await self._offers())
            _log.info("this instance publishes")
            self._decide()
            self._publisher.wake()
            await self._lock.wanted()
            _log.info("a newer instance publishes from now on")
        finally:
            self._offered = self._at_server = None
            self._lock.release()

    def _decide(self) -> None:
        if self._contents is None or not self._master_known:
            return
        if self._master is not None:
            self._publisher.withdraw(self._master)
            return
        offered = dict(self._offered or {})
        contents = with_given_back(self._contents, _by_device(offered)) or (SliceContent(),)
        if offered != self._sent[1]:
            self._at_server = None
        self._sent = contents, offered
        self._publisher.publish(contents)
        if self._offered is not None and self._publisher.settled.is_set():
            self.acknowledged(contents)  # it is what was there before


def _by_device(offered: Mapping[ShareKey, Amounts]) -> Mapping[str, Amounts]:
    more: dict[str, Amounts] = {}
    for key, amounts in offered.items():
        more[key.device] = more.get(key.device, NOTHING) + amounts
    return more
