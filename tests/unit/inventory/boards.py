"""GPUs that can be partitioned, as boards report it (mig_boards.json), for tests of what is published of them."""

import json
from functools import cache
from pathlib import Path

from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement, MigProfile
from tests.unit.inventory.builders import GIB, gpu

_MIB = 2**20
_TABLE = json.loads(Path(__file__).with_name("mig_boards.json").read_text())["boards"]
BOARDS = tuple(_TABLE)
H100, A100, A30, RTX_PRO = "H100-80GB", "A100-80GB", "A30-24GB", "RTX-PRO-6000-BW-96GB"
NEEDS_RESET = frozenset(board for board in BOARDS if board.startswith("A"))


def rows(board: str) -> list[dict]:
    """Return the profiles of a board as they stand in the table."""
    return _TABLE[board]["profiles"]


def compute_slices(board: str) -> int:
    """Return into how many compute slices a board is divided."""
    return _TABLE[board]["slices"]


@cache
def profiles(board: str) -> tuple[MigProfile, ...]:
    """Return the profiles of a board; a number that nobody has published is filled in by proportion."""
    return tuple(_profile(row) for row in rows(board))


def partitionable(board: str, number: int = 0, **facts) -> Gpu:
    """Return GPU `number` of a board, as it comes: MIG mode off."""
    live = board not in NEEDS_RESET
    defaults = {
        "product_name": f"NVIDIA {board}",
        "memory_bytes": round(max(profile.memory_bytes for profile in profiles(board)) * 1.02) // _MIB * _MIB,
        "multiprocessors": _TABLE[board]["sm"],
        "compute_capability": (9, 0) if live else (8, 0),
        "mig_capable": True,
        "mig_enabled": False,
        "mig_pending": False,
        "mig_live": live,
        "mig_profiles": profiles(board),
    }
    return gpu(number, **{**defaults, **facts})


def instance(board: str, name: str, start: int, *, whole: bool = True) -> MigInstance:
    """Return a GPU instance of a profile, with one compute instance that spans it or with several."""
    profile = next(profile for profile in profiles(board) if profile.name == name)
    placement = next(place for place in profile.placements if place.start == start)
    number = profile.profile_id * 100 + start
    if not whole:
        return MigInstance(placement, number)
    return MigInstance(placement, number, 0, f"MIG-{number:08x}-0000-0000-0000-000000000000")


def _profile(row: dict) -> MigProfile:
    engines = [row["slices"] if count is None else count for count in row["engines"]]
    sm = row["sm"] or 18 * row["slices"]
    memory = int(row["gib"] * GIB) if row["gib"] else 10 * row["units"] * GIB
    return MigProfile(
        profile=row["nvml"],
        profile_id=row["id"],
        name=row["name"],
        slices=row["slices"],
        memory_bytes=memory // _MIB * _MIB,
        multiprocessors=sm,
        copy_engines=engines[0],
        decoders=engines[1],
        encoders=engines[2],
        jpeg_engines=engines[3],
        ofa_engines=engines[4],
        max_instances=row["max"],
        placements=tuple(MigPlacement(row["nvml"], start, row["units"]) for start in row["starts"]),
    )
