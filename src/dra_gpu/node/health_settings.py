"""Settings of the health of GPUs: flags and environment variables."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from dra_gpu.flags import Flags, seconds
from dra_gpu.health import xids
from dra_gpu.health.policy import HealthPolicy
from dra_gpu.health.recovery import RecoveryRules
from dra_gpu.health.verdicts import Evict
from dra_gpu.health.xids import Severity, XidRules

_LONGEST_SECONDS = 100 * 365 * 86400.0  # more is the same, and more than a `timedelta` takes


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """How this node judges its GPUs.

    Attributes:
        evict: whose pods are evicted.
        hold_off: seconds without a serious event after which a GPU that was not reset is well again.
        period: seconds between two looks.
        xid_rules: by XID, what follows from it instead of what the catalogue says.
    """

    evict: Evict = Evict.NEVER
    hold_off: float = 600.0
    period: float = 5.0
    xid_rules: Mapping[int, Severity | None] = field(default_factory=dict)

    @property
    def policy(self) -> HealthPolicy:
        """The policy that they make."""
        hold_off = timedelta(seconds=min(self.hold_off, _LONGEST_SECONDS))
        return HealthPolicy(XidRules(self.xid_rules), RecoveryRules(hold_off=hold_off))


def add_health_flags(flags: Flags) -> None:
    """Add the flags to a parser."""
    default = HealthSettings()
    add = flags.add
    add(
        "--health-evict",
        "HEALTH_EVICT",
        default.evict.value,
        "whose pods are evicted: never anybody's, those on a GPU that is lost, or those on one that has to be reset, "
        "too (fatal)",
        type=_read(_evict),
    )
    add(
        "--health-hold-off",
        "HEALTH_HOLD_OFF",
        default.hold_off,
        "seconds without a serious error after which a GPU that was not reset is offered again",
        type=seconds,
    )
    add("--health-period", None, default.period, "seconds between two looks at the GPUs' health", type=seconds)
    add(
        "--xid-policy",
        "XID_POLICY",
        {},
        "what follows from XIDs instead of what NVIDIA's catalogue says, such as 94=fatal,13=ignore: ignore, notice, "
        "cordon (no new claims), fatal (it has to be reset) or lost (it is gone)",
        type=_read(xids.rules),
    )
    for flag, variable, text in (
        ("--ignore-xids", "IGNORE_XIDS", "XIDs that are only counted, separated by commas"),
        ("--additional-xids-to-ignore", "ADDITIONAL_XIDS_TO_IGNORE", "the same by the name of NVIDIA's driver"),
    ):
        add(flag, variable, (), text, type=_read(xids.ignored))


def health_settings(found: argparse.Namespace) -> HealthSettings:
    """Return the settings from parsed flags; a list of XIDs to ignore wins over a policy."""
    rules: dict[int, Severity | None] = dict(found.xid_policy)
    rules.update(dict.fromkeys((*found.ignore_xids, *found.additional_xids_to_ignore)))
    return HealthSettings(found.health_evict, found.health_hold_off, found.health_period, rules)


def _evict(text: str) -> Evict:
    try:
        return Evict(text)
    except ValueError as error:
        raise ValueError(f"{text!r} must be one of {', '.join(one.value for one in Evict)}") from error


def _read(reader: Callable[[str], object]) -> Callable[[str], object]:
    """Return a `type` for argparse, whose message is the reader's."""

    def read(text: str) -> object:
        try:
            return reader(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read
