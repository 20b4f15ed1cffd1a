"""Carries out a slice plan: one request after the other, each answer compared with what was sent.

The first failure ends the run; whoever asked makes a new plan from what then is. A slice whose answer lacks
counters is the one failure that leaves nothing behind: its device slice is deleted at once, so the pool stays
incomplete and allocates nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from dra_gpu.api.resource_v1 import ResourceSlice
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.kubernetes_api import KubernetesApi
from dra_gpu.apiserver.publish_reports import DroppedFields, PublishReport
from dra_gpu.apiserver.rate_limit import RateLimit
from dra_gpu.apiserver.resources import RESOURCE_SLICES
from dra_gpu.apiserver.slice_cache import SliceCache
from dra_gpu.apiserver.slice_content import GATE_OF_FIELD, UNSAFE_FIELDS, content_of, dropped_fields
from dra_gpu.apiserver.slice_diff import Accepted, SlicePlan, Write


class UnsafeDropError(Exception):
    """The server dropped counters; nothing further of this pool may be written."""


class SliceWriter:
    """Writes and deletes slices, and remembers what the server makes of them.

    Args:
        api: the client.
        cache: told about every outcome.
        rate: bound on requests.
        report: called with dropped fields.
    """

    def __init__(
        self, api: KubernetesApi, cache: SliceCache, rate: RateLimit, report: Callable[[PublishReport], None]
    ) -> None:
        self._api = api
        self._cache = cache
        self._rate = rate
        self._report = report
        self._accepted: dict[str, Accepted] = {}

    @property
    def accepted(self) -> Mapping[str, Accepted]:
        """By object name: contents that the server is known to store with fields missing."""
        return MappingProxyType(self._accepted)

    async def execute(self, plan: SlicePlan) -> None:
        """Carry out a plan.

        Raises:
            errors.ApiError: a request failed; what was done before it stays.
            UnsafeDropError: the server dropped counters.
        """
        await self.delete(plan.deletes)
        for write in plan.writes:
            await self._rate.acquire()
            stored = await (self._create(write) if write.existing is None else self._update(write))
            self._cache.wrote(stored)
            await self._compare(write, stored)

    async def delete(self, doomed: Iterable[ResourceSlice]) -> None:
        """Delete slices, each only if it is still the one that we know.

        Raises:
            errors.ApiError: a request failed.
        """
        for one in doomed:
            await self._rate.acquire()
            meta = one.metadata
            try:
                await self._api.delete(RESOURCE_SLICES, meta.name, uid=meta.uid, resource_version=meta.resource_version)
            except errors.NotFoundError:
                pass  # gone already, which is what was wanted
            except errors.ConflictError:
                await self._look_at(one)
                raise
            self._cache.removed(one)

    async def _create(self, write: Write) -> ResourceSlice:
        try:
            return await self._api.create(RESOURCE_SLICES, write.body)
        except errors.AlreadyExistsError:
            await self._look_at(write.body)  # ours from before, or somebody else's: the next plan knows
            raise

    async def _update(self, write: Write) -> ResourceSlice:
        try:
            return await self._api.update(RESOURCE_SLICES, write.body, write.body.metadata.name)
        except (errors.ConflictError, errors.NotFoundError):
            await self._look_at(write.body)
            raise

    async def _look_at(self, one: ResourceSlice) -> None:
        """Read one slice, because the cache was wrong about it."""
        await self._rate.acquire()
        try:
            self._cache.wrote(await self._api.get(RESOURCE_SLICES, one.metadata.name))
        except errors.NotFoundError:
            self._cache.removed(one)

    async def _compare(self, write: Write, stored: ResourceSlice) -> None:
        name = stored.metadata.name
        content = content_of(stored.spec)
        dropped = dropped_fields(write.content, content)
        if not dropped:
            self._accepted.pop(name, None)
            return
        gates = sorted({GATE_OF_FIELD[field] for field in dropped if field in GATE_OF_FIELD})
        unsafe = bool(dropped & UNSAFE_FIELDS)
        self._report(DroppedFields(name, tuple(sorted(dropped)), tuple(gates), unsafe))
        if not unsafe:
            self._accepted[name] = Accepted(write.content, content)
            return
        if stored.spec.devices:
            await self.delete([stored])
        raise UnsafeDropError(f"the server dropped {', '.join(sorted(dropped))} from {name}")
