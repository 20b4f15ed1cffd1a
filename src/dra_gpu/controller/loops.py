"""What the replica that leads does, and what it tells of it."""

import asyncio
from collections import Counter
from dataclasses import dataclass

from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.leader_election import LeaderElection
from dra_gpu.controller.lost_nodes import LostNodes
from dra_gpu.controller.resizes.resizer import Resizer
from dra_gpu.controller.resizes.starting import Rules
from dra_gpu.controller.resizes.sweep import ResizeSweep
from dra_gpu.controller.settings import Growth, Settings
from dra_gpu.controller.waiting_pods import WaitingPods
from dra_gpu.metrics.controller import ControllerMetrics

DRIVERS = frozenset({"gpu.nvidia.com"})
_GROWTHS = ("asked", "granted", "refused")
_PODS, _NODES, _RESIZES, _SWEEP = "waiting-pods", "lost-nodes", "resizes", "resize-sweep"


@dataclass(frozen=True, slots=True)
class _Term:
    """The loops of one term. Each begins with nothing: what it has to know it hears anew."""

    pods: WaitingPods
    nodes: LostNodes
    resizer: Resizer
    sweep: ResizeSweep

    @classmethod
    def of(
        cls, api: HttpKubernetesApi, election: LeaderElection, chosen: Settings, metrics: ControllerMetrics
    ) -> "_Term":
        """Compose them."""

        def leads() -> bool:
            return election.leads

        rules = Rules(DRIVERS, beyond=chosen.growth is Growth.ANY)
        resizer = Resizer(api, rules, chosen.growth_image, leads, metrics.resize_seconds.observe)
        return cls(
            WaitingPods(api, DRIVERS, leads),
            LostNodes(api, DRIVERS, leads, grace=chosen.sweep_grace, period=chosen.sweep_period),
            resizer,
            ResizeSweep(api, resizer, grace=chosen.sweep_grace, period=chosen.sweep_period),
        )

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pods.reflector.run(), name="events")
            group.create_task(self.pods.queue.run(), name=_PODS)
            group.create_task(self.nodes.run(), name=_NODES)
            group.create_task(self.resizer.run(), name=_RESIZES)
            group.create_task(self.sweep.run(), name=_SWEEP)

    def counts(self) -> Counter[tuple[str, str]]:
        """Return what has been counted so far, by what and where."""
        pods, resizes = self.pods.queue, self.resizer.queue
        return Counter(
            {
                ("failed", _PODS): pods.failed,
                ("failed", _NODES): self.nodes.failed,
                ("failed", _RESIZES): resizes.failed,
                ("failed", _SWEEP): self.sweep.failed,
                ("dropped", _PODS): pods.dropped,
                ("dropped", _RESIZES): resizes.dropped,
                ("touched", ""): self.pods.touched,
                ("removed", ""): self.nodes.removed,
                **{("growths", outcome): self.resizer.growths[outcome] for outcome in _GROWTHS},
            }
        )


class Loops:
    """The terms of one replica, one after the other.

    Args:
        api: the API server.
        election: whether it leads.
        chosen: its settings.
        metrics: where it tells.
    """

    def __init__(
        self, api: HttpKubernetesApi, election: LeaderElection, chosen: Settings, metrics: ControllerMetrics
    ) -> None:
        self._api = api
        self._election = election
        self._chosen = chosen
        self._metrics = metrics
        self._term = _Term.of(api, election, chosen, metrics)
        self._before: Counter[tuple[str, str]] = Counter()

    async def run(self) -> None:
        """Lead until cancelled."""
        self._before.update(self._term.counts())
        self._term = _Term.of(self._api, self._election, self._chosen, self._metrics)
        await self._term.run()

    async def problem(self) -> str:
        """Return why this replica could not take part; a replica that waits for its turn is well."""
        return "" if self._election.holder else "the lease has not been seen yet: see the log"

    async def show(self) -> None:
        """Fill the metrics."""
        metrics, term = self._metrics, self._term
        counted = self._before + term.counts()
        metrics.queue.replace({(_PODS,): float(len(term.pods.queue)), (_RESIZES,): float(len(term.resizer.queue))})
        failed = (_PODS, _NODES, _RESIZES, _SWEEP)
        metrics.failures.replace({(name,): float(counted["failed", name]) for name in failed})
        metrics.dropped.replace({(name,): float(counted["dropped", name]) for name in (_PODS, _RESIZES)})
        metrics.touched.set(counted["touched", ""])
        metrics.removed.set(counted["removed", ""])
        leads = self._election.leads
        watched = {
            "events": term.pods.reflector.age,
            "claimresizes": term.resizer.resizes.age,
            "growths": term.resizer.growing.age,
            "growth-pods": term.resizer.pods.age,
        }
        metrics.watch_age.replace({(name,): age for name, age in watched.items()} if leads else {})
        metrics.growths.replace({(outcome,): float(counted["growths", outcome]) for outcome in _GROWTHS})
        phases = term.resizer.phases().items() if leads else ()
        metrics.resizes.replace({(phase.value,): float(number) for phase, number in phases})
