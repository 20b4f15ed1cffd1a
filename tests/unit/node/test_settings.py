from pathlib import Path

import pytest

from dra_gpu.inventory.model import View
from dra_gpu.inventory.options import ConsumableShares
from dra_gpu.node import settings


def parse(*arguments, **environment):
    return settings.parse(["--vendor=nvidia", *arguments], environment)


def test_the_node_name_comes_from_the_downward_api():
    assert parse(NODE_NAME="node-a").node_name == "node-a"


def test_a_flag_wins_over_its_variable():
    assert parse("--node-name=b", NODE_NAME="a").node_name == "b"


@pytest.mark.case("C58")
def test_without_a_node_name_it_refuses_to_guess_one(capsys):
    with pytest.raises(SystemExit):
        parse()

    assert "NODE_NAME" in capsys.readouterr().err


def test_the_state_lies_beside_the_kubelets_sockets():
    assert parse("--node-name=a").state_dir == Path("/var/lib/kubelet/plugins/gpu.nvidia.com")


def test_a_driver_root_has_a_name_on_the_host_and_one_in_this_process():
    chosen = parse("--node-name=a", NVIDIA_DRIVER_ROOT="/run/nvidia/driver", DRIVER_ROOT_CTR_PATH="/driver-root")

    assert (str(chosen.driver_root.host), str(chosen.driver_root.process)) == ("/run/nvidia/driver", "/driver-root")


def test_views_are_chosen_by_name():
    assert parse("--node-name=a", "--views=gpu").views == (View.GPU,)


@pytest.mark.parametrize(
    ("arguments", "variable", "chosen"),
    [
        ([], "", False),
        (["--numa-lists"], "", True),
        ([], "true", True),
        (["--numa-lists=false"], "true", False),
    ],
)
def test_numa_nodes_are_lists_only_where_the_operator_says_so(arguments, variable, chosen):
    assert parse("--node-name=a", *arguments, NUMA_LISTS=variable).numa_lists is chosen


@pytest.mark.parametrize(
    ("arguments", "variable", "chosen"),
    [
        ([], "", None),
        (["--consumable-shares=memory"], "", ConsumableShares(counts_memory=True)),
        ([], "unlimited", ConsumableShares()),
        (["--consumable-shares=4"], "memory", ConsumableShares(number=4)),
        (["--consumable-shares=disabled"], "memory", None),
    ],
)
def test_whole_gpus_are_one_claims_alone_unless_the_operator_says_otherwise(arguments, variable, chosen):
    assert parse("--node-name=a", *arguments, CONSUMABLE_SHARES=variable).consumable_shares == chosen


@pytest.mark.parametrize(
    "wrong",
    [
        "--consumable-shares=0",
        "--numa-lists=perhaps",
        "--views=nothing",
        "--views=",
        "--rescan-period=0",
        "--rescan-period=x",
        "--expected-gpus=0",
        "--log-level=loud",
    ],
)
def test_a_wrong_value_is_refused(wrong):
    with pytest.raises(SystemExit):
        parse("--node-name=a", wrong)


def test_profiles_are_chosen_by_name_and_left_to_each_gpu_otherwise():
    assert parse("--node-name=a").mig_profiles is None
    chosen = parse("--node-name=a", "--mig-profiles=1G.10gb, 1g.24gb+me.all", SHARED_MIG_PROFILES="3g.40gb")

    assert chosen.mig_profiles == ("1g.10gb", "1g.24gb+me.all")
    assert chosen.shared_mig_profiles == ("3g.40gb",)


@pytest.mark.parametrize("wrong", ["1g", "1g.10", "mig-1g.10gb", "1g.10gb+", "1g.10gb,3g", "", "0g.5gb"])
def test_what_cannot_be_a_profile_is_refused_with_an_example(wrong, capsys):
    with pytest.raises(SystemExit):
        parse("--node-name=a", f"--mig-profiles={wrong}")

    assert "1g.10gb+me" in capsys.readouterr().err
