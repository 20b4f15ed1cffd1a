"""The opaque configs of a claim or class: what is wrong with each, and which of them says nothing to anybody.

Precedence is that of the node: of all configs of the claim that apply to a request and are of its device's kind, the
last one wins as a whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_gpu.api import opaque
from dra_gpu.api.config_error import InvalidConfigError
from dra_gpu.api.nvidia_v1beta1 import GpuConfig, MigDeviceConfig, MpsConfig, SharingStrategy
from dra_gpu.validation.classes import CLASSES
from dra_gpu.validation.problem import Problem, under, warning
from dra_gpu.validation.requests import Wanted, objects

_OUR_GROUPS = ("resource.nvidia.com", "resource.dra-gpu.dev")
_UUIDS = ("GPU-", "MIG-")


@dataclass(frozen=True, slots=True)
class Entry:
    """One config for a driver of ours that can be decoded.

    Attributes:
        path: where it stands.
        requests: what it names; empty for all.
        config: what it says.
    """

    path: str
    requests: tuple[str, ...]
    config: opaque.AnyConfig

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return type(self.config).__name__

    def applies(self, way: Wanted) -> bool:
        """Tell whether the node looks at it for a device of this request."""
        return not self.requests or way.name in self.requests or way.request in self.requests

    def fits(self, way: Wanted) -> bool:
        """Tell whether the devices of a request take this kind; a class that is not known takes any."""
        return way.facts is None or isinstance(self.config, way.facts.kind)


def read(value: object, path: str) -> tuple[tuple[Entry, ...], tuple[Problem, ...]]:
    """Return the configs that can be used, and what is wrong with the others.

    Args:
        value: the list of configs of a claim or class.
        path: where it stands.
    """
    entries: list[Entry] = []
    problems: list[Problem] = []
    for index, item in enumerate(objects(value)):
        place = f"{path}[{index}]"
        inner = item.get("opaque")
        if not isinstance(inner, dict):
            continue
        driver, parameters = inner.get("driver"), inner.get("parameters")
        if not isinstance(driver, str) or driver not in opaque.KINDS:
            problems += _foreign(driver, parameters, place)
            continue
        if "parameters" not in inner:
            continue  # it is missing, which its shape's problems say
        try:
            config = opaque.read(driver, parameters)
        except InvalidConfigError as error:
            problems += under(f"{place}.opaque.parameters", error.problems)
            continue
        names = item.get("requests")
        requests = tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()
        entries.append(Entry(place, requests, config))
    return tuple(entries), tuple(problems)


def _foreign(driver: object, parameters: object, path: str) -> Iterator[Problem]:
    """Yield a warning about a kind of ours that is addressed to a driver that does not know it."""
    if not isinstance(parameters, dict):
        return
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if not isinstance(version, str) or version.partition("/")[0] not in _OUR_GROUPS:
        return
    owner = next((one for one, kinds in opaque.KINDS.items() if any(name == kind for _, name in kinds)), None)
    yield warning(
        f"{path}.opaque.driver",
        f"is {str(driver)[:80]!r}, so that nobody here reads the {str(kind)[:80]}",
        f"write {owner or ' or '.join(opaque.KINDS)}",
    )


def check_class(name: str, entries: Sequence[Entry]) -> Iterator[Problem]:
    """Yield what is wrong with the configs of a class by that name, beyond what each says."""
    facts = CLASSES.get(name)
    for entry in entries if facts is not None else ():
        if facts is not None and not isinstance(entry.config, facts.kind):
            yield Problem(
                f"{entry.path}.opaque.parameters.kind",
                f"is {entry.kind}, but devices of class {name} take a {facts.kind.__name__}",
                "correct the kind, or remove the config",
            )


def check_claim(entries: Sequence[Entry], requests: Sequence[Sequence[Wanted]]) -> Iterator[Problem]:
    """Yield what is wrong with the configs of a claim, beyond what each says."""
    ways = [way for request in requests for way in request]
    for index, entry in enumerate(entries):
        meant = [way for way in ways if entry.applies(way)]
        wrong = [way for way in meant if not entry.fits(way)] if entry.requests else []
        yield from _wrong_kind(entry, wrong)
        governed = [way for way in meant if entry.fits(way)]
        if not wrong and meant:
            yield from _ignored(entry, governed, entries[index + 1 :])
        total = _governed(entry, entries, requests)
        yield from _devices_by_name(entry, total) if total != 0 else ()  # what nobody reads limits nothing
        yield from _without_effect(entry)


def _wrong_kind(entry: Entry, wrong: Sequence[Wanted]) -> Iterator[Problem]:
    for way in wrong[:1]:
        assert way.facts is not None
        several = way.name != way.request
        yield Problem(
            f"{entry.path}.opaque.parameters.kind",
            f"is {entry.kind}, but request {way.name} gets a device of class {way.ask.device_class_name}, which takes "
            f"a {way.facts.kind.__name__}",
            "let `requests` name only alternatives that it fits (main/sub)"
            if several
            else f"correct the kind, or take {way.name} out of `requests`",
        )


def _ignored(entry: Entry, governed: Sequence[Wanted], later: Sequence[Entry]) -> Iterator[Problem]:
    place = f"{entry.path}.opaque.parameters"
    if not governed:
        yield warning(
            f"{place}.kind",
            f"is {entry.kind}, which the devices of no request take: it is ignored",
            "remove it, or correct its kind",
        )
    elif all(way.admin for way in governed):
        yield warning(
            place, "is for requests with admin access, which changes nothing on a GPU: it is ignored", "remove it"
        )
    elif all(_overridden(way, later) for way in governed):
        yield warning(
            place,
            "is ignored: a config further down applies to the same requests, and the last one wins as a whole",
            "put all settings into one config",
        )


def _overridden(way: Wanted, later: Sequence[Entry]) -> bool:
    return way.facts is not None and any(one.applies(way) and one.fits(way) for one in later)


def governing(way: Wanted, entries: Sequence[Entry]) -> opaque.AnyConfig | None:
    """Return the config of the claim that governs a device of a known class."""
    fitting = [one.config for one in entries if one.applies(way) and one.fits(way)]
    return fitting[-1] if fitting else None


def mps_of(config: opaque.AnyConfig | None) -> MpsConfig | None:
    """Return what a config of a whole GPU or partition says about MPS; None where it does not ask for it."""
    if not isinstance(config, GpuConfig | MigDeviceConfig) or config.sharing is None:
        return None
    return (config.sharing.mps_config or MpsConfig()) if config.sharing.strategy is SharingStrategy.MPS else None


def _devices_by_name(entry: Entry, total: int | None) -> Iterator[Problem]:
    """Yield limits for devices that the config does not govern, of which there are `total` at most."""
    mps = mps_of(entry.config)
    limits = mps.default_per_device_pinned_memory_limit if mps else {}
    for key in limits:
        field = f"{entry.path}.opaque.parameters.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[{key[:80]!r}]"
        if key.startswith(_UUIDS):
            if isinstance(entry.config, MigDeviceConfig):
                reason = "is a UUID, and a partition that is made for the claim has none before"
                yield Problem(field, reason, "write its index among the devices of this config")
            continue
        if not (key.isascii() and key.isdecimal() and str(int(key[:9])) == key):
            yield Problem(field, "is neither the UUID nor the index of a device", "write a UUID, or a number from 0")
        elif total is not None and int(key) >= total:
            last = f"write an index from 0 to {total - 1}" if total > 1 else "write index 0"
            yield Problem(field, f"names no device: the config governs at most {total}", last)


def _governed(entry: Entry, entries: Sequence[Entry], requests: Sequence[Sequence[Wanted]]) -> int | None:
    """Return how many devices a config governs at most; None where all of a node. Who watches is not governed."""
    total = 0
    for request in requests:
        counts = [way.count for way in request if not way.admin and governing(way, entries) is entry.config]
        if None in counts:
            return None
        total += max((count for count in counts if count is not None), default=0)
    return total


def _without_effect(entry: Entry) -> Iterator[Problem]:
    config = entry.config
    if not isinstance(config, MigDeviceConfig) or config.sharing is None:
        return
    if config.sharing.strategy is SharingStrategy.TIME_SLICING:
        yield warning(
            f"{entry.path}.opaque.parameters.sharing.strategy",
            "is TimeSlicing, which sets nothing on a MIG device: its processes take turns anyway",
            "leave `sharing` out",
        )


def names(devices: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Yield configs and constraints that name a request which the claim does not have."""
    known: set[str] = set()
    for request in objects(devices.get("requests")):
        name = request.get("name")
        if not isinstance(name, str):
            continue
        known.add(name)
        known |= {f"{name}/{alternative.get('name')}" for alternative in objects(request.get("firstAvailable"))}
    for field in ("config", "constraints"):
        for index, item in enumerate(objects(devices.get(field))):
            meant = item.get("requests")
            for number, name in enumerate(meant if isinstance(meant, list) else ()):
                if isinstance(name, str) and name not in known:
                    shown = ", ".join(sorted(known))[:400] or "no request"
                    yield Problem(
                        f"{path}.{field}[{index}].requests[{number}]",
                        f"is {name[:80]!r}, and the claim has no such request",
                        f"write one of {shown}",
                    )
