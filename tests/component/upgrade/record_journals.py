"""Records the journal of this release with every kind of claim: `python -m tests.component.upgrade.record_journals`.

Once a release with a new format is out, its fixture is never recorded again: it is what lies on nodes.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from dra_gpu_sim.local.cluster import LocalCluster
from tests.component.node.conftest import World
from tests.component.upgrade.held import FIXTURES, GPUS, KINDS, THIS, HeldNode


async def record(release: str, program: tuple[str, ...] = THIS) -> None:
    """Write the fixture of a format, by a program that has it."""
    with tempfile.TemporaryDirectory(prefix="dg-") as root:
        async with LocalCluster(Path(root), "P-dc8", GPUS) as cluster:
            node = HeldNode(World(cluster))
            try:
                instance = await node.start(program=program)
                await node.hold(*KINDS[release])
                await node.stop(instance)
                title = f"-- The journal in format {release}, on a node that holds: {', '.join(KINDS[release])}.\n"
                (FIXTURES / f"journal-{release}.sql").write_text(title + node.dump())
            finally:
                await node.kill_all()
                node.close()


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1], tuple(sys.argv[2:]) or THIS))
