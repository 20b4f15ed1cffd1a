"""A refusal in one sentence, as a pod's event would say it: for each request what stands in the way, and how often."""

from collections import Counter

from dra_gpu.scheduler.allocator import NotAllocated
from dra_gpu.scheduler.reasons import NotSelected, RequestReport


def sentence(refused: NotAllocated) -> str:
    """Say why claims were not allocated; devices of other classes are left out, they were never meant."""
    parts = [refused.message]
    parts += [f"pool {pool}: {problem}" for pool, problem in refused.pools.items()]
    parts += [_request(report) for report in refused.requests]
    return "; ".join(parts)


def _request(report: RequestReport) -> str:
    meant = [
        reason for reason in report.devices.values() if not (isinstance(reason, NotSelected) and reason.device_class)
    ]
    if not meant:
        return f"request {report.request}: no device of its class"
    counted = Counter(str(reason) for reason in meant).most_common()
    texts = (f"{text} ({count} devices)" if count > 1 else text for text, count in counted)
    return f"request {report.request}: {', '.join(texts)}"
