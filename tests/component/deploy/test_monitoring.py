"""Dashboard, alerts and ServiceMonitor speak of metrics that there are."""

import json
import re

import pytest
import yaml

from dra_gpu.metrics import reference
from tests.component.deploy.rendering import CHART, rendered
from tests.component.go_programs import builds_go

pytestmark = builds_go
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
ALERTS = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())

#: What Prometheus and the ServiceMonitor add to each series.
TARGET_LABELS = {"node", "pod", "instance", "job"}
_METRIC = re.compile(r"\b((?:nvidia_dra|dra_gpu)_\w+)(?:\{([^}]*)\})?")


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions():
    yield from (target["expr"] for panel in panels() for target in panel["targets"])
    yield from (rule["expr"] for group in ALERTS["groups"] for rule in group["rules"])


def metrics():
    """Return the labels of every metric of the driver by its name in Prometheus."""
    found = {}
    for one in (definition for process in reference.definitions().values() for definition in process):
        suffixes = ("_bucket", "_sum", "_count") if one.kind == "histogram" else ("",)
        found |= {f"{one.name}{suffix}": {*one.labels, "le"} for suffix in suffixes}
    return found


METRICS = metrics()


@pytest.mark.parametrize("expression", [*expressions()])
def test_an_expression_names_metrics_and_labels_of_the_driver(expression):
    named = _METRIC.findall(expression)
    assert named
    labels = set(TARGET_LABELS)
    for name, selectors in named:
        assert name in METRICS
        labels |= METRICS[name]
        assert set(re.findall(r"(\w+)\s*[=!]~?=?\"", selectors)) <= METRICS[name] | TARGET_LABELS

    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= labels


def test_every_panel_has_a_place_of_its_own():
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_every_alert_says_what_is_wrong_and_what_to_do():
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]

    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["alert"].startswith("DraGpu")
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["for"]
        assert set(rule["annotations"]) == {"summary", "description"}


def test_the_rule_object_and_the_dashboard_have_the_files_as_they_are():
    (rules,) = rendered("monitored").of_kind("PrometheusRule")
    dashboard = rendered("monitored").one("ConfigMap", "-dashboard")

    assert rules["spec"] == ALERTS
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    assert json.loads(dashboard["data"]["dra-driver-gpu.json"]) == DASHBOARD
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_monitor_finds_the_pods_that_serve_metrics_and_no_others():
    chart = rendered("monitored")
    (monitor,) = chart.of_kind("ServiceMonitor")
    service = chart.one("Service", "-metrics")
    chosen = [
        one
        for one in chart.workloads
        if service["spec"]["selector"].items() <= one["spec"]["template"]["metadata"]["labels"].items()
    ]

    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    found = {one["metadata"]["name"].removeprefix("dra-driver-gpu-") for one in chosen}
    assert found == {"node-nvidia", "mps", "controller", "webhook"}
    for one in chosen:
        ports = [
            port["name"] for container in one["spec"]["template"]["spec"]["containers"] for port in container["ports"]
        ]
        assert "metrics" in ports
    (endpoint,) = monitor["spec"]["endpoints"]
    paths = {one["regex"]: one["replacement"] for one in endpoint["relabelings"] if "regex" in one}
    assert paths == {"node": "/gpu/metrics", "mps": "/metrics", "controller": "/metrics", "webhook": "/metrics"}
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]
    assert endpoint["honorLabels"] is True  # a claim's namespace is not the driver's
    assert set(monitor["spec"]) == {"selector", "podTargetLabels", "endpoints"}


def test_without_the_operator_nothing_of_it_is_made():
    kinds = {one["kind"] for one in rendered("default").objects}

    assert not kinds & {"ServiceMonitor", "PrometheusRule"}
    assert not [one for one in rendered("default").of_kind("Service") if one["metadata"]["name"].endswith("-metrics")]
