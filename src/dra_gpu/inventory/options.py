"""What an operator may choose about how GPUs are offered."""

from dataclasses import dataclass

from dra_gpu.inventory.model import View

_MAX_DIGITS = 4
# Fractions of partitions among them: there are none until the operator lists a profile.
DEFAULT_VIEWS = (View.GPU, View.SHARED, View.MIG, View.SHARED_MIG, View.MONITOR)


@dataclass(frozen=True, slots=True)
class ConsumableShares:
    """How several claims have one whole GPU, or one partition, at once: NVIDIA's option of that name.

    The scheduler counts, and nothing on the node limits anybody. Who wants limits takes the view `shared`.

    Attributes:
        counts_memory: claims ask for memory, all of it unless they say how much; else for as little as nothing.
        number: how many claims at most; None for any number.
    """

    counts_memory: bool = False
    number: int | None = None


def consumable_shares(text: str) -> ConsumableShares | None:
    """Return what an operator wrote: `disabled`, `memory`, `unlimited` or the number of claims.

    Raises:
        ValueError: it is something else; the message says what it may be.
    """
    match text:
        case "disabled":
            return None
        case "memory":
            return ConsumableShares(counts_memory=True)
        case "unlimited":
            return ConsumableShares()
        case _ if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS and int(text):
            return ConsumableShares(number=int(text))
    raise ValueError(f"{text[:40]!r} must be disabled, memory, unlimited, or a number of claims from 1 to 9999")


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Which devices a GPU is published as. Each one costs the scheduler time, most of all MIG placements.

    Attributes:
        views: the views to publish, where a GPU can serve them.
        mig_profiles: names of the profiles to publish (`1g.10gb`); None for all but those with `+me` or `+gfx`.
        shared_mig_profiles: names of the profiles of which fractions are published, too.
        numa_lists: `numaNode` lists the nodes nearest to a GPU instead of naming one. Only for clusters whose API
            server and scheduler have the feature gate `DRAListTypeAttributes`: others refuse the slice.
        consumable_shares: how several claims have one whole GPU or partition; None where each is one claim's alone.
    """

    views: tuple[View, ...] = DEFAULT_VIEWS
    mig_profiles: tuple[str, ...] | None = None
    shared_mig_profiles: tuple[str, ...] = ()
    numa_lists: bool = False
    consumable_shares: ConsumableShares | None = None
