"""What the slice publisher reports, as lines of the log; what a person has to act on is told as an Event as well."""

from collections.abc import Callable

import structlog

from dra_gpu.apiserver import publish_reports as reports

_log = structlog.get_logger(__name__)


def log_report(  # noqa: C901 - one case a kind of report, nothing nested
    report: reports.PublishReport, tell: Callable[[str, str], None]
) -> None:
    """Log what the publisher reports; what a person has to act on is also told as an Event.

    Args:
        report: what happened.
        tell: takes an Event's reason and note.
    """
    match report:
        case reports.Published(generation, count, writes):
            _log.info("published", generation=generation, slices=count, writes=writes)
        case reports.Withdrawn(reason, count):
            _log.warning("slices withdrawn", reason=reason, slices=count)
        case reports.LeftOut(problems):
            for problem in problems:
                _log.error("left out of the slices", where=problem.where, reason=problem.reason)
                tell("LeftOutOfSlices", f"{problem.where}: {problem.reason}")
        case reports.Rejected(message):
            _log.error("slices refused", reason=message)
            tell("SlicesRefused", message)
        case reports.DroppedFields(name, fields, gates, unsafe):
            _log.error("the API server dropped fields", slice=name, fields=fields, gates=gates, unsafe=unsafe)
            tell("FieldsDropped", f"slice {name}: {', '.join(fields)} dropped; switch on {', '.join(gates)}")
        case reports.ForeignSlices(names):
            if names:
                _log.error("slices of our name are not ours; nothing is published", slices=names)
                tell("AnotherMaster", f"slices {', '.join(names)} are not this driver's: uninstall one of the two")
            else:
                _log.info("foreign slices are gone")
        case reports.Wiped(names):
            _log.warning("slices were deleted and come back", slices=names)
        case reports.PublishFailed(message, retry_in):
            _log.warning("publishing failed", reason=message, retry_in=retry_in)
        case reports.WatchFailed(message):
            _log.info("the watch on slices broke and goes on", reason=message)
