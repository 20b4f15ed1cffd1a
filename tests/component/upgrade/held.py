"""A node on which claims of every kind are held, any release of the node plugin there, and its journal as text."""

import asyncio
import re
import sqlite3
import sys
from collections.abc import Coroutine, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from dra_gpu_sim.local import plugin
from dra_gpu_sim.local.cluster import DRIVER
from dra_gpu_sim.local.kubelet import Answer, Claim
from dra_gpu_sim.local.plugin import PluginProcess
from tests.component.node.configs import time_slice
from tests.component.node.node_under_fire import PATIENCE, journal_path, records, rows
from tests.component.node.sharing import Sharing

FIXTURES = Path(__file__).parent / "fixtures"
NEWER = (sys.executable, "-I", str(Path(__file__).parent / "newer_release.py"))
THIS = (sys.executable, "-I", "-m", "dra_gpu")
VIEWS = ("--views=gpu,shared,mig,shared-mig,monitor", "--shared-mig-profiles=1g.10gb")
GPUS = 4
#: Published for them: whole, shared, monitor, 18 places of partitions, and the fractions of 7 of these.
DEVICES = GPUS * (3 + 18 + 7)
_LOOK_SECONDS = 0.05  # the kubelet looks every second
#: What each release could hold, by the format of its journal.
KINDS = {
    "1.0": ("whole", "watched"),
    "1.1": ("whole", "watched", "share"),
    "1.2": ("whole", "watched", "share", "partition", "part-of-partition"),
}
EVERY_KIND = KINDS["1.2"]
SHARE_IDS = {
    "share": "5a5a5a5a-0000-4000-8000-000000000001",
    "part-of-partition": "5a5a5a5a-0000-4000-8000-000000000002",
}
POD = "5a5a5a5a-0000-4000-8000-0000000000aa"


class AnyRelease(PluginProcess):
    """An instance of any release of the node plugin."""

    program: tuple[str, ...] = THIS

    async def start(self, arguments) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*self.program, *arguments, stdout=log, stderr=log)


class HeldNode:
    """A node with four H100s, the MPS service, and short words for what tests of upgrades do."""

    def __init__(self, world) -> None:
        self.world, self.cluster, self.node, self.kubelet = world, world.cluster, world.node, world.kubelet
        self.sharing = Sharing(world)
        self.claims: dict[str, Claim] = {}
        self.instances: list[AnyRelease] = []
        self.cgroup = ""

    async def start(
        self, *more: str, program: tuple[str, ...] = THIS, views: tuple[str, ...] = VIEWS, leave: bool = False
    ) -> AnyRelease:
        """Start one more instance, and wait until the kubelet has registered it; it becomes the world's."""
        if self.sharing.service is None:
            self.sharing.service = await self.cluster.start_mps()
        number = len(self.instances) + 1
        instance = AnyRelease(self.cluster.root / f"plugin-release-{number}.log")
        instance.program = program
        self.instances.append(instance)
        known = len(self.kubelet.plugins)
        arguments = plugin.arguments(
            self.node, self.cluster.paths, node_name=self.cluster.node_name, kubeconfig=self.cluster.kubeconfig
        )
        if leave:
            arguments.insert(1, "leave")
        await instance.start([*arguments, f"--pod-uid=pod-{number}", *views, *more])
        registering = asyncio.ensure_future(self.kubelet.wait_registered(DRIVER, count=known + 1))
        ending = asyncio.ensure_future(instance.process.wait())
        await asyncio.wait({registering, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not registering.done():
            registering.cancel()
            raise RuntimeError(f"the plugin ended before it was registered:\n{instance.read_log()}")
        await registering
        self.world.plugin = instance
        return instance

    async def stop(self, instance: AnyRelease) -> None:
        """End an instance as Kubernetes does; it must end well, and the kubelet forgets it meanwhile."""
        assert await self._ended(instance.stop()) == 0, instance.read_log()

    async def ended(self, instance: AnyRelease) -> int:
        """Wait until an instance ends by itself, and return its exit status."""
        async with asyncio.timeout(PATIENCE):
            return await self._ended(instance.process.wait())

    async def _ended(self, end: Coroutine[Any, Any, int]) -> int:
        ending = asyncio.ensure_future(end)
        while not ending.done():
            await self.kubelet.look()
            await asyncio.wait({ending}, timeout=_LOOK_SECONDS)
        await self.kubelet.look()
        return ending.result()

    def forget(self, instance: AnyRelease) -> None:
        """Let the kubelet notice that an instance was killed: it calls another one that is there."""
        name = f"pod-{self.instances.index(instance) + 1}"
        for one in [one for one in self.kubelet.plugins if f"-{name}." in one.endpoint]:
            one.channel.close()
            self.kubelet.plugins.remove(one)

    def add(self, kind: str) -> Claim:
        """Make an allocated claim of a kind."""
        pool = self.cluster.node_name

        def result(device: str, **more) -> dict:
            return {"request": "r", "driver": DRIVER, "pool": pool, "device": device, **more}

        share = {"shareID": SHARE_IDS.get(kind), "consumedCapacity": {"computePercent": "20", "memory": "2Gi"}}
        of = {
            "whole": ([result("gpu-0")], [time_slice("Long")]),
            "watched": ([result("gpu-0-monitor", adminAccess=True)], []),
            "share": ([result("gpu-1-shared", **share)], []),
            "partition": ([result("gpu-2-mig-3g40gb-9-0")], []),
            "part-of-partition": ([result("gpu-3-mig-1g10gb-19-4-shared", **share)], []),
        }
        results, config = of[kind]
        self.claims[kind] = self.cluster.add_claim(
            kind, results=results, config=config, pod_uid=POD if kind == "share" else ""
        )
        return self.claims[kind]

    def make_pod(self) -> None:
        """Make the cgroup of the pod that uses a share, as the kubelet does before it prepares its claim."""
        self.cgroup = self.cgroup or self.cluster.paths.make_pod_cgroup(POD)

    async def hold(self, *kinds: str) -> dict[str, Answer]:
        """Prepare a claim of each kind; all must succeed."""
        self.make_pod()
        return {kind: await self.world.prepared(self.add(kind)) for kind in kinds}

    async def give_back(self) -> None:
        """Unprepare everything; all must succeed."""
        answers = await self.world.unprepare(*self.claims.values())
        assert set(answers.values()) == {""}, answers
        for claim in self.claims.values():
            self.cluster.remove_claim(claim)
        self.claims.clear()

    def effects(self) -> dict[str, object]:
        """The truth about everything that claims have made of the GPUs."""
        snapshot = self.node.snapshot()
        return {
            "slices": [gpu.time_slice for gpu in snapshot.gpus],
            "modes": [(gpu.mig_current, gpu.compute_mode) for gpu in snapshot.gpus],
            "partitions": [sorted((one.profile, one.start) for one in gpu.instances) for gpu in snapshot.gpus],
            "limits": sorted((limit.cgroup, limit.hard) for limit in snapshot.limits),
        }

    def left(self) -> dict[str, object]:
        """Everything that is there only because of claims; empty when nothing is held."""
        return self.sharing.left()

    def states(self) -> dict[str, str]:
        """The state of every claim in the journal, by its kind."""
        found = records(self.world)
        return {kind: found.get(claim.uid, "") for kind, claim in self.claims.items()}

    def format(self) -> int:
        """The format of the journal's file."""
        return rows(self.world, "PRAGMA user_version")[0][0]

    def close(self) -> None:
        """End what outlives its service outside of a container."""
        self.sharing.close()

    async def kill_all(self) -> None:
        """End every instance."""
        for instance in self.instances:
            await instance.kill()

    def change_journal(self, *statements: str) -> None:
        """Do to the journal what another release would, in one transaction."""
        with closing(sqlite3.connect(journal_path(self.world), timeout=PATIENCE)) as connection:
            for statement in statements:
                connection.execute(statement).fetchall()
            connection.commit()

    def tokens(self) -> dict[str, str]:
        """What in a journal differs from node to node, and how a fixture says it."""
        found = {uuid: f"{{gpu-{number}}}" for number, uuid in enumerate(self.node.uuids)}
        found |= {claim.uid: f"{{claim-{kind}}}" for kind, claim in self.claims.items()}
        return found | {self.node.boot_id: "{boot}", str(self.cluster.root): "{root}"}

    def dump(self) -> str:
        """The journal as text, without what differs from node to node."""
        with closing(sqlite3.connect(journal_path(self.world))) as connection:
            pragmas = ("application_id", "user_version")
            head = [f"PRAGMA {name} = {connection.execute(f'PRAGMA {name}').fetchone()[0]};" for name in pragmas]
            text = "\n".join([*head, *connection.iterdump()])
        for found, token in self.tokens().items():
            text = text.replace(found, token)
        return text + "\n"

    def with_own_values(self, text: str) -> str:
        """What a fixture says, for this node and its claims."""
        for value, token in self.tokens().items():
            text = text.replace(token, value)
        return text

    def load(self, text: str, boot: str = "") -> None:
        """Put a journal in its place that `dump` gave, perhaps on another node, with the claims of this one."""
        text = self.with_own_values(text.replace("{boot}", boot) if boot else text)
        assert not re.search(r"\{[a-z-]+\d?\}", text), re.search(r"\{[a-z-]+\d?\}", text)
        path = journal_path(self.world)
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            path.unlink()
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(text)


def fixture(release: str) -> str:
    """The journal of an earlier release, by its format."""
    return (FIXTURES / f"journal-{release}.sql").read_text()


def answers_of(given: Mapping[str, Answer]) -> dict[str, tuple]:
    """What the kubelet was told, in a form that can be compared."""
    return {
        kind: tuple((one.device, one.cdi_ids, one.share_id) for one in answer.devices) for kind, answer in given.items()
    }
