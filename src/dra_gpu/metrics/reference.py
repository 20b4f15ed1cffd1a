"""The reference of all metrics, made from their definitions, so that it cannot say anything else."""

from dra_gpu.metrics.controller import ControllerMetrics
from dra_gpu.metrics.mps import MpsMetrics
from dra_gpu.metrics.node import NodeMetrics
from dra_gpu.metrics.registry import Definition, Registry
from dra_gpu.metrics.webhook import WebhookMetrics

_HEAD = """\
# Metrics

Made by `make metrics-doc`. Each process serves its metrics in Prometheus' text format where `--http-endpoint` says
(`HTTP_ENDPOINT`, such as `:8080`; nowhere by default), under `--metrics-path` (`/metrics`), beside `/healthz` (should
it be started again?) and `/readyz` (does it do its work yet?). Names that begin with `nvidia_dra_` are those of
NVIDIA's driver and mean the same. Every process has the usual `process_*` metrics as well.

Labels are bounded: GPUs by the name that their devices have, claims by those that hold something on the node now,
errors by kind, never by a message or a UID. A claim that is given back leaves no series behind. A GPU that does not
answer costs a scrape half a second at most: the values of before are shown then, and `dra_gpu_usage_age_seconds` says
how old they are.
"""


def definitions() -> dict[str, list[Definition]]:
    """Return the metrics of each process, by the heading under which they stand."""
    node, mps, controller, webhook = (Registry(name) for name in ("node", "mps", "controller", "webhook"))
    NodeMetrics.of(node, "gpu.nvidia.com")
    MpsMetrics.of(mps)
    ControllerMetrics.of(controller)
    WebhookMetrics.of(webhook)
    registries = {
        "Node plugin (`dra-gpu node`)": node,
        "MPS service (`dra-gpu mps`)": mps,
        "Controller (`dra-gpu controller`)": controller,
        "Webhook (`dra-gpu webhook`)": webhook,
    }
    return {heading: registry.definitions for heading, registry in registries.items()}


def render() -> str:
    """Return the page, in Markdown."""
    parts = [_HEAD]
    for heading, found in definitions().items():
        rows = [f"| `{one.name}` | {one.kind} | {_labels(one)} | {one.text} |" for one in found]
        parts.append(
            "\n".join([f"## {heading}", "| Metric | Type | Labels | Meaning |", "|---|---|---|---|", *rows, ""])
        )
    return "\n".join(parts)


def _labels(one: Definition) -> str:
    return ", ".join(f"`{label}`" for label in one.labels)
