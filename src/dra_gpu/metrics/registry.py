"""The metrics of one process.

Made on prometheus-client, without its global registry: who has a `Registry` has all of its metrics. Two things are
added. A `Snapshot` is a set of values that is replaced as a whole, so that what is gone leaves no line behind. And what
takes a while to find out is refreshed by `before_render` within a bound: a scrape that cannot wait longer gets the
values of before. Scrapes that come at the same time share one look and one text.
"""

import asyncio
import platform
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from dra_gpu import __version__

DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
"""Seconds: from what a prepare takes that finds everything done, to the longest that a kubelet waits."""
REFRESH_SECONDS = 0.5
"""How long a scrape waits for fresh values; Prometheus gives up after 10 s, and people after one."""

Labels = TypeVar("Labels", bound=tuple[str, ...])
Kind = Literal["counter", "gauge", "histogram"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric as the reference shows it.

    Attributes:
        name: as it stands in the text.
        kind: of Prometheus.
        text: what it means, and in which unit.
        labels: names of its labels.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()


class Snapshot(Collector):
    """Values by their labels, replaced as a whole.

    Args:
        definition: what they are; a counter's values only grow, which is up to whoever counts.
        most: series that are shown; more would be a mistake of ours, and a burden for whoever stores them.
    """

    def __init__(self, definition: Definition, most: int) -> None:
        self._definition = definition
        self._most = most
        self._values: Mapping[tuple[str, ...], float] = {}

    def replace(self, values: Mapping[Labels, float]) -> None:
        """Show these from now on; each key has the labels' values in order."""
        self._values = {labels: values[labels] for labels in sorted(values)[: self._most]}

    def set(self, value: float) -> None:
        """Show one value without labels."""
        self._values = {(): value}

    def collect(self) -> Iterable[Metric]:
        """Yield the values of now; prometheus-client calls this."""
        one = self._definition
        family = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
        shown: CounterMetricFamily | GaugeMetricFamily = family(one.name, one.text, labels=one.labels)
        for labels, value in self._values.items():
            shown.add_metric(labels, value)
        yield shown


class Registry:
    """All metrics of one process.

    Args:
        component: which process, for its build info.
    """

    def __init__(self, component: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library forgot to annotate it
        self.definitions: list[Definition] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._refreshers: list[Callable[[], Awaitable[None]]] = []
        self._refreshing: dict[int, asyncio.Task[None]] = {}
        self._rendering: asyncio.Task[bytes] | None = None
        ProcessCollector(registry=self._registry)
        build = self.snapshot("dra_gpu_build_info", "gauge", "1, with what this process is", ("version", "component"))
        build.replace({(__version__, component): 1.0})
        python = self.snapshot("dra_gpu_python_info", "gauge", "1, with the interpreter's version", ("version",))
        python.replace({(platform.python_version(),): 1.0})

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        """Add a counter; its name ends in `_total`."""
        self._define(name, "counter", text, labels)
        return Counter(name, text, labels, registry=self._registry)

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """Add a value that goes up and down."""
        self._define(name, "gauge", text, labels)
        return Gauge(name, text, labels, registry=self._registry)

    def histogram(
        self, name: str, text: str, labels: Sequence[str] = (), buckets: Sequence[float] = DURATION_BUCKETS
    ) -> Histogram:
        """Add a distribution."""
        self._define(name, "histogram", text, labels)
        return Histogram(name, text, labels, buckets=buckets, registry=self._registry)

    def snapshot(
        self, name: str, kind: Literal["counter", "gauge"], text: str, labels: Sequence[str] = (), *, most: int = 4096
    ) -> Snapshot:
        """Add values that are replaced as a whole."""
        made = Snapshot(self._define(name, kind, text, labels), most)
        self._registry.register(made)
        return made

    def before_render(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Call `refresh` before each text is made; one that is still at work is not called again, nor waited for."""
        self._refreshers.append(refresh)

    async def render(self) -> bytes:
        """Return all metrics in Prometheus' text format 0.0.4, within about `REFRESH_SECONDS`."""
        if self._rendering is None:
            self._rendering = asyncio.ensure_future(self._render())
            self._rendering.add_done_callback(self._rendered)
        return await asyncio.shield(self._rendering)

    async def close(self) -> None:
        """End refreshers that are at work."""
        tasks = [*self._refreshing.values(), *([self._rendering] if self._rendering else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _render(self) -> bytes:
        for number, refresh in enumerate(self._refreshers):
            if number not in self._refreshing:
                self._refreshing[number] = asyncio.ensure_future(self._refresh(number, refresh))
        if self._refreshing:
            await asyncio.wait(tuple(self._refreshing.values()), timeout=REFRESH_SECONDS)
        return generate_latest(self._registry)

    async def _refresh(self, number: int, refresh: Callable[[], Awaitable[None]]) -> None:
        try:
            await refresh()
        except Exception as error:  # noqa: BLE001 - old values are better than none
            _log.warning("metrics could not be brought up to date", reason=str(error), exc_info=error)
        finally:
            self._refreshing.pop(number, None)

    def _rendered(self, _task: "asyncio.Task[bytes]") -> None:
        self._rendering = None

    def _define(self, name: str, kind: Kind, text: str, labels: Sequence[str]) -> Definition:
        definition = Definition(name, kind, text, tuple(labels))
        self.definitions.append(definition)
        return definition
