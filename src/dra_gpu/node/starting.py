"""What the node plugin does before it works, and how it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import structlog

from dra_gpu import __version__
from dra_gpu.claims.journal import Journal
from dra_gpu.claims.reconciler import Reconciler
from dra_gpu.kubelet.leftovers import remove_dead_registrations
from dra_gpu.kubelet.server import KubeletServer
from dra_gpu.node.inventory_watch import InventoryWatch
from dra_gpu.node.presence import Presence

# What the start does is tried again after so long, twice as long each time: a disk comes back in seconds or not at all.
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0

_log = structlog.get_logger(__name__)


class StartError(Exception):
    """The node plugin cannot run here; the message says why and what to do."""


def read_boot_id(path: Path) -> str:
    """Return the id of this boot.

    Raises:
        StartError: it cannot be read.
    """
    try:
        boot_id = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(
            f"the boot id cannot be read from {path} ({error}): give its path with --boot-id-file"
        ) from error
    if not boot_id:
        raise StartError(f"{path} is empty: give the file with the boot id with --boot-id-file")
    return boot_id


def open_journal(state_dir: Path, boot_id: str, stack: AsyncExitStack, *, stays: bool) -> Journal:
    """Open the journal in the state directory, which is made; it is closed with the stack.

    Args:
        state_dir: the directory.
        boot_id: of this boot.
        stack: of the instance.
        stays: other instances must not remove the directory before this one has closed the journal.

    Raises:
        StartError: the directory cannot be made.
        JournalError: the journal is there and must not be touched.
    """
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (state_dir / "locks").mkdir(mode=0o700, exist_ok=True)
        if stays:
            stack.callback(Presence(state_dir).close)
    except OSError as error:
        raise StartError(
            f"state directory {state_dir} cannot be made ({error}): give a writable one with --state-dir"
        ) from error
    journal = Journal.open(state_dir, boot_id=boot_id, release=__version__)
    stack.push_async_callback(journal.close)
    return journal


def tell_damage(journal: Journal, tell: Callable[[str, str], None]) -> None:
    """Say so if the journal was damaged."""
    if journal.recovered is not None:
        _log.error("the journal was damaged and set aside", reason=str(journal.recovered))
        tell("JournalDamaged", str(journal.recovered))


async def listen(server: KubeletServer, registrar_dir: Path, driver: str) -> None:
    """Serve the kubelet, after what dead instances left is removed.

    Raises:
        StartError: a socket cannot be had.
    """
    try:
        await asyncio.to_thread(remove_dead_registrations, registrar_dir, driver, server.paths.registration)
        await server.start()
    except OSError as error:
        raise StartError(
            f"{error}: stop the other instance, or give each instance its pod's UID (--pod-uid); "
            "the kubelet's directories must exist and be writable"
        ) from error


async def put_in_order(
    watch: InventoryWatch, reconciler: Reconciler, ready: asyncio.Event, tell: Callable[[str, str], None]
) -> None:
    """Settle what the last run left; `ready` is set as soon as claims may be served."""
    await watch.looked.wait()
    if await reconciler.has_unrecorded():
        # A journal that was lost must not give away what containers hold: first find out what that is.
        await watch.found.wait()
        await insist(reconciler.adopt, "finding out what containers hold", tell)
    ready.set()
    await insist(reconciler.recover, "putting in order what the last run left", tell)


async def insist(work: Callable[[], Awaitable[object]], what: str, tell: Callable[[str, str], None]) -> None:
    """Do what the start needs until it succeeds; a disk that cannot be read now must not end the process."""
    wait = FIRST_RETRY_SECONDS
    while True:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - told, and tried again; claims are served meanwhile
            _log.error("the start is not finished", doing=what, retry_in=wait, exc_info=error)
            tell("StartNotFinished", f"{what} failed and is tried again: {error}")
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_RETRY_SECONDS)
        else:
            return


async def until_stopped(
    stop: asyncio.Event, background: dict[str, Coroutine[Any, Any, None]], server: KubeletServer
) -> None:
    """Run until asked to stop; a background task that ends by itself ends the process: nothing would replace it."""
    tasks = [asyncio.create_task(work, name=name) for name, work in background.items()]
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        await server.stop()
        for task in done - {stopping}:
            raise RuntimeError(f"the background task {task.get_name()!r} ended") from task.exception()
    finally:
        for task in (stopping, *tasks):
            task.cancel()
        await asyncio.gather(stopping, *tasks, return_exceptions=True)
