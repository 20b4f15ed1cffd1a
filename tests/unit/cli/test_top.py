"""What claims use beside what they may, from what node plugins and API server tell."""

import json

import pytest

from dra_gpu.cli.listing import Holder, ListedGpu
from dra_gpu.cli.top import PluginPod, Seen, _Container, _PodSpec, _Port, read_samples, use_of
from dra_gpu.cli.top_output import as_json, as_table, nothing_found

GIB = 2**30
METRICS = f"""
dra_gpu_memory_used_bytes{{gpu="gpu-0"}} {30 * GIB}
dra_gpu_unattributed_memory_bytes{{gpu="gpu-0"}} {2 * GIB}
dra_gpu_claim_memory_used_bytes{{namespace="team",claim="infer",gpu="gpu-0",source="cgroup"}} {8 * GIB}
dra_gpu_claim_memory_held_bytes{{namespace="team",claim="infer",gpu="gpu-0"}} {20 * GIB}
dra_gpu_claim_sm_utilization_ratio{{namespace="team",claim="infer",gpu="gpu-0"}} 0.125
dra_gpu_claim_usage_unavailable{{namespace="team",claim="other",gpu="gpu-0",what="sm",reason="shared-pod"}} 1
dra_gpu_claim_memory_used_bytes{{namespace="team",claim="infer",gpu="gpu-1",source="cgroup"}} 1
"""


def share(claim, device="gpu-0-shared", percent="20", memory="10Gi", **more):
    return Holder(claim, device, "shared", share="s", capacities={"computePercent": percent, "memory": memory}, **more)


def listed(*holders):
    return ListedGpu("node-a", "gpu-0", "H100", "80Gi", "GPU-0", "0000:10:00.0", "cgroup", {}, holders=holders)


def use(*holders, samples=METRICS):
    return use_of(listed(*holders), None if samples is None else read_samples(samples))


def test_a_share_has_its_figures_beside_its_limits():
    [claim] = use(share("team/infer")).claims

    assert (claim.sm_percent, claim.sm_limit_percent) == (12.5, 20)
    assert (claim.memory_used, claim.memory_limit) == (8 * GIB, 10 * GIB)


def test_limits_that_were_moved_are_those_in_force():
    moved = share("team/infer", effective={"computePercent": "5", "memory": "2Gi"})

    [claim] = use(moved).claims

    assert (claim.sm_limit_percent, claim.memory_limit) == (5, 2 * GIB)


def test_a_partition_has_the_memory_that_its_node_tells():
    [claim] = use(Holder("team/infer", "gpu-0-mig-1g10gb-19-0", "mig", profile="1g.10gb")).claims

    assert (claim.sm_limit_percent, claim.memory_limit) == (None, 20 * GIB)


def test_a_gpu_has_what_all_use_and_what_nobody_does():
    found = use()

    assert (found.memory, found.memory_used, found.unattributed) == (80 * GIB, 30 * GIB, 2 * GIB)


def test_a_whole_gpu_has_all_of_its_memory_and_no_limit_of_sms():
    [claim] = use(Holder("team/train", "gpu-0", "gpu")).claims

    assert (claim.sm_limit_percent, claim.memory_limit) == (None, 80 * GIB)


def test_two_shares_of_a_claim_on_a_gpu_are_one_line():
    [claim] = use(share("team/pair"), share("team/pair"), samples="").claims

    assert (claim.sm_limit_percent, claim.memory_limit) == (40, 20 * GIB)
    assert claim.devices == ("gpu-0-shared",)


def test_whoever_only_watches_uses_nothing():
    assert use(Holder("team/watch", "gpu-0-monitor", "monitor", admin=True)).claims == ()


def test_what_cannot_be_told_has_its_reason():
    [claim] = use(share("team/other")).claims

    assert claim.unavailable == {"sm": "shared-pod"}
    assert "(several claims of one pod) / 20 %" in as_table(Seen([use(share("team/other"))]))


def test_of_a_node_that_does_not_tell_the_limits_are_shown_all_the_same():
    seen = Seen([use(share("team/infer"), samples=None)])

    assert "(the node does not tell) / 20 %" in as_table(seen)
    assert "(the node does not tell) / 10.0Gi" in as_table(seen)


def test_the_table_has_a_line_for_each_claim_and_one_for_a_gpu_without():
    table = as_table(Seen([use(share("team/infer")), use()]))

    assert [line.split()[:2] for line in table.splitlines()] == [
        ["NODE", "GPU"],
        ["node-a", "gpu-0"],
        ["(no", "claim)"],
        ["node-a", "gpu-0"],
        ["(no", "claim)"],
    ]
    assert "12.5 % / 20 %" in table
    assert "8.0Gi / 10.0Gi" in table


def test_machines_get_bytes_and_percent():
    [gpu] = json.loads(as_json(Seen([use(share("team/infer"))])))["gpus"]

    assert gpu["claims"] == [
        {
            "claim": "team/infer",
            "devices": ["gpu-0-shared"],
            "smPercent": 12.5,
            "smLimitPercent": 20,
            "memoryUsed": 8 * GIB,
            "memoryLimit": 10 * GIB,
        }
    ]


@pytest.mark.parametrize(("node", "said"), [("", "No GPU is published:"), ("node-z", "on node 'node-z'")])
def test_a_cluster_without_gpus_is_told_so(node, said):
    assert said in nothing_found([], node)


@pytest.mark.parametrize(
    ("args", "ports", "endpoint"),
    [
        ((), (_Port("metrics", 8080),), (8080, "/metrics")),
        (("--metrics-path=/m",), (_Port("health", 1), _Port("metrics", 9090)), (9090, "/m")),
        ((), (), None),
    ],
)
def test_port_and_path_of_a_plugins_metrics_are_those_of_its_pod(args, ports, endpoint):
    assert PluginPod(spec=_PodSpec("node-a", (_Container(args, ports),))).endpoint == endpoint


def test_what_is_no_scrape_is_an_error():
    with pytest.raises(ValueError, match=r".*"):
        read_samples("<html>")
