"""Fills the disk under the journal and tells what the engine made of it, as JSON. Argument: the node's directory.

`DIRECTORY/state` must be a small file system of its own.
"""

import asyncio
import json
import sys
from pathlib import Path

from dra_gpu.claims.outcome import Refusal
from tests.unit.claims.world import LONG, Node, config, ref


def fill(path: Path) -> None:
    """Write until nothing fits."""
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def told(answer) -> str:
    return answer.message if isinstance(answer, Refusal) else ""


async def main(directory: Path) -> dict[str, object]:
    async with Node(directory).running() as node:
        held = node.api.add(ref("u2", "held"), "gpu-1", configs=[config(**LONG)])
        fresh = node.api.add(ref("u1", "fresh"), "gpu-0", configs=[config(**LONG)])
        found: dict[str, object] = {"held": told(await node.prepare(held))}
        filler = directory / "state" / "filler"
        fill(filler)
        found["prepare on a full disk"] = told(await node.prepare(fresh))
        found["gpu-0 after it"] = node.slice_of("gpu-0").value
        found["files after it"] = sorted(node.specs.claim_uids())
        found["records after it"] = [record.ref.uid for record in await node.journal.records()]
        found["unprepare on a full disk"] = told(await node.unprepare(held))
        found["gpu-1 after it"] = node.slice_of("gpu-1").value
        filler.unlink()
        found["prepare with room"] = told(await node.prepare(fresh))
        found["unprepare with room"] = told(await node.unprepare(held))
        found["records at the end"] = [record.ref.uid for record in await node.journal.records()]
        return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
