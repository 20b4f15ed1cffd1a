"""What tests that break a node need: where a call has come to, what the journal says, what a process costs."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

SMI = "nvidia-smi compute-policy"
#: Seconds for what takes milliseconds: the machine may be busy with something else.
PATIENCE = 60.0
#: What a kubelet gives a call that is refused for what another claim holds. The plugin keeps half of it to undo and to
#: answer; the rest is for reading the claim and looking, which a busy machine does late.
SOON_REFUSED = 8.0


async def until(condition: Callable[[], object], within: float = PATIENCE) -> None:
    """Return as soon as a condition holds that no event tells of.

    Raises:
        TimeoutError: it did not come to that in time.
    """
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


def journal_path(world) -> Path:
    return world.cluster.paths.state / "journal.db"


def rows(world, query: str) -> list[tuple]:
    """Ask the journal as any other program may."""
    with closing(sqlite3.connect(f"file:{journal_path(world)}?mode=ro", uri=True, timeout=PATIENCE)) as connection:
        return connection.execute(query).fetchall()


def records(world) -> dict[str, str]:
    """Return the state of every claim in the journal."""
    return dict(rows(world, "SELECT uid, state FROM claims"))


def held_twice(world) -> list[tuple]:
    """Return GPUs that more than one claim uses, according to the journal."""
    return rows(
        world, "SELECT gpu, count(DISTINCT uid) FROM holds WHERE access <> 'observer' GROUP BY gpu HAVING count(*) > 1"
    )


@contextmanager
def journal_busy(world) -> Iterator[None]:
    """Keep everybody else from writing to the journal, so that whoever wants to stands still right before."""
    with closing(sqlite3.connect(journal_path(world), isolation_level=None, timeout=PATIENCE)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


class Stall:
    """A call to the hardware of one GPU hangs the next time that it is made, and then at the time after that.

    A fault that is injected while a call hangs meets that same call unless it stands before the first one.
    """

    def __init__(self, world, call: str, gpu: int) -> None:
        self._node, self._call, self._gpu = world.node, call, gpu
        self._place = self._node.inject("nothing", delay_ms=1)
        self._serial = self._node.inject(call, gpu=gpu, block=True)

    def reached(self) -> bool:
        return any(fault.serial == self._serial and fault.hits for fault in self._node.faults())

    async def go_on(self) -> None:
        """Let the call that hangs do its work, and wait until the next one hangs."""
        self._node.clear(serial=self._place)
        earlier, self._serial = self._serial, self._node.inject(self._call, gpu=self._gpu, block=True)
        self._node.clear(serial=earlier)
        await until(self.reached)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def command_line(pid: int) -> bytes:
    """Return a process' arguments; nothing of one that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def status_of(pid: int, field: str) -> int:
    """Return a number of /proc/PID/status: `Threads`, or `VmRSS` in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise LookupError(field)


def foreign_files(world) -> list[str]:
    """Return files below the cluster's directory that nobody who runs there has a reason to make."""
    root = world.cluster.root
    known = ("gpus/", "plugin-", "kubeconfig", "kubelet/plugins/gpu.nvidia.com/", "kubelet/plugins_registry/", "cdi/")
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if not path.is_dir() and not str(path.relative_to(root)).startswith(known)
    )
