"""The pods run the shipped programs with flags that these understand, and every flag for an operator has a value."""

import argparse
import itertools

import pytest

from dra_gpu.controller import settings as controller_settings
from dra_gpu.controller import uninstall_check
from dra_gpu.health.verdicts import Evict
from dra_gpu.health.xids import Severity
from dra_gpu.inventory.options import DEFAULT_VIEWS
from dra_gpu.mps import settings as mps_settings
from dra_gpu.node import settings as node_settings
from dra_gpu.node.health_settings import HealthSettings
from dra_gpu.webhook import settings as webhook_settings
from tests.component.deploy.rendering import VALUE_SETS, rendered
from tests.component.go_programs import builds_go

pytestmark = builds_go


def parse_node(arguments, environment):
    """As `dra-gpu node` does; `leave` is a word before its flags."""
    return node_settings.parse(arguments[1:] if arguments[:1] == ["leave"] else arguments, environment)


PARSERS = {
    "node": parse_node,
    "mps": mps_settings.parse,
    "controller": controller_settings.parse,
    "webhook": webhook_settings.parse,
    "uninstall-check": uninstall_check.parse,
}

#: What a pod must not be given: it has these from its own place, or they belong to who runs the program by hand.
NOT_FOR_PODS = {
    "node": {
        "--kubeconfig": "the ServiceAccount's token",
        "--container-dev-root": "mounted by the host's path",
        "--proc-root": "hostPID",
        "--state-dir": "beside the plugin's socket",
        "--additional-xids-to-ignore": "health.ignoreXids",
    },
    "mps": {"--own-shm": "always"},
    "controller": {"--kubeconfig": "the ServiceAccount's token"},
    "webhook": {"--kubeconfig": "the ServiceAccount's token", "--drain": "long enough for every API server"},
    "uninstall-check": {"--kubeconfig": "the ServiceAccount's token"},
}
FROM_ENVIRONMENT = {
    "--node-name": "NODE_NAME",
    "--pod-uid": "POD_UID",
    "--namespace": "NAMESPACE",
    "--pod-name": "POD_NAME",
}


def processes(name):
    """Yield every container: its program, its flags, and its environment as a pod would see it."""
    for one in rendered(name).workloads:
        for container in one["spec"]["template"]["spec"]["containers"]:
            program, *flags = container["args"]
            environment = {
                variable["name"]: variable.get("value", f"the {variable['name']}")
                for variable in container.get("env", ())
            }
            yield program, flags, environment


def settings_of(program, name):
    found = [PARSERS[program](flags, environment) for one, flags, environment in processes(name) if one == program]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("name", VALUE_SETS)
def test_each_program_takes_the_flags_it_is_given(name):
    for program, flags, environment in processes(name):
        assert PARSERS[program](flags, environment) is not None
        given = [flag.partition("=")[0] for flag in flags]
        assert [word for word in given if not word.startswith("--")] in ([], ["leave"])
        assert len(given) == len(set(given))


def flags_of(program, monkeypatch):
    """Return every flag that a program has, by asking its own parser."""
    names = []
    add = argparse.ArgumentParser.add_argument

    def record(self, *flags, **options):
        names.extend(flags)
        return add(self, *flags, **options)

    monkeypatch.setattr(argparse.ArgumentParser, "add_argument", record)
    with pytest.raises(SystemExit):
        PARSERS[program](["--help"], {})
    return {name for name in names if name.startswith("--")} - {"--help"}


@pytest.mark.parametrize("program", PARSERS)
def test_every_flag_for_an_operator_has_a_value(program, monkeypatch, capsys):
    every = [
        (flags, environment) for name in VALUE_SETS for one, flags, environment in processes(name) if one == program
    ]
    given = {flag.partition("=")[0] for flag in itertools.chain.from_iterable(flags for flags, _ in every)}
    given |= {flag for flag, variable in FROM_ENVIRONMENT.items() if all(variable in each for _, each in every)}

    assert flags_of(program, monkeypatch) - given == NOT_FOR_PODS[program].keys()


def test_the_defaults_of_the_chart_are_those_of_the_program():
    chosen = settings_of("node", "default")
    by_itself = node_settings.parse(["--vendor=nvidia", "--node-name=n"], {})

    assert chosen.views == DEFAULT_VIEWS
    for name in (
        "cdi_root", "plugins_dir", "registrar_dir", "state_dir", "mps_socket", "mig_profiles", "shared_mig_profiles",
        "numa_lists", "consumable_shares", "expected_gpus", "rescan_period", "gpu_timeout", "reconcile_period",
        "health", "log_level", "sysfs_root", "proc_root", "driver_proc_root", "cgroup_root", "boot_id_file", "dev_root",
    ):  # fmt: skip
        assert getattr(chosen, name) == getattr(by_itself, name), name
    of_controller = controller_settings.parse([], {})
    for name in ("times", "sweep_period", "sweep_grace", "log_level", "metrics_path"):
        assert getattr(settings_of("controller", "default"), name) == getattr(of_controller, name), name
    of_webhook = webhook_settings.parse([], {})
    for name in ("port", "files", "drain_seconds", "log_level", "metrics_path"):
        assert getattr(settings_of("webhook", "default"), name) == getattr(of_webhook, name), name
    assert settings_of("uninstall-check", "default").wait == uninstall_check.WAIT_SECONDS
    of_mps = mps_settings.parse([], {})
    assert settings_of("mps", "default").directory == of_mps.directory
    assert settings_of("mps", "default").settle_period == of_mps.settle_period


def test_an_instance_knows_its_node_and_has_sockets_of_its_own():
    (daemonset,) = [one for one in rendered("default").of_kind("DaemonSet") if "node" in one["metadata"]["name"]]
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    fields = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"]}

    assert fields == {"NODE_NAME": "spec.nodeName", "POD_UID": "metadata.uid"}


def test_the_webhooks_names_are_those_of_the_plain_manifests_where_the_chart_has_these():
    assert settings_of("webhook", "plain names").place == webhook_settings.parse(
        [], {"NAMESPACE": "the NAMESPACE"}
    ).place  # fmt: skip


def test_the_controllers_lease_is_the_one_that_its_role_names():
    for name in ("default", "plain names"):
        (role,) = [one for one in rendered(name).of_kind("Role") if one["metadata"]["name"].endswith("-controller")]
        names = {named for rule in role["rules"] for named in rule.get("resourceNames", ())}

        assert names == {settings_of("controller", name).lease_name}


def test_without_the_mps_service_shares_are_time_slices():
    assert settings_of("node", "whole GPUs alone, nothing shared").mps_socket is None


def test_whoever_leaves_the_nodes_waits_there_to_be_ended():
    (leaving,) = [flags for program, flags, _ in processes("leaving the nodes") if program == "node"]

    assert leaving[0] == "leave"
    assert settings_of("node", "leaving the nodes").stay
    assert not settings_of("node", "default").stay


def test_node_plugin_and_mps_service_meet_at_one_socket():
    assert settings_of("node", "default").mps_socket == settings_of("mps", "default").socket


def test_every_choice_of_an_operator_arrives():
    chosen = settings_of("node", "everything")

    assert chosen.mig_profiles == ("1g.10gb", "3g.40gb+me")
    assert chosen.shared_mig_profiles == ("3g.40gb",)
    assert chosen.consumable_shares is not None
    assert chosen.consumable_shares.number == 4
    assert chosen.numa_lists
    assert chosen.expected_gpus == 8
    assert chosen.gpu_timeout == 7.5
    assert chosen.health == HealthSettings(
        Evict.LOST, 90.0, 2.5, {94: Severity.FATAL, 48: Severity.NOTICE, 13: None, 31: None}
    )
    assert chosen.log_level == "debug"


@pytest.mark.case("C145")
@pytest.mark.parametrize("name", ["another kubelet root", "kubelet directories one by one", "default"])
def test_the_kubelets_directories_are_mounted_by_the_paths_that_the_flags_name(name):
    chosen = settings_of("node", name)
    (daemonset,) = [one for one in rendered(name).of_kind("DaemonSet") if "node" in one["metadata"]["name"]]
    pod = daemonset["spec"]["template"]["spec"]
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    hosts = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}

    assert mounts["plugins"] == hosts["plugins"] == str(chosen.plugins_dir)
    assert mounts["registrar"] == hosts["registrar"] == str(chosen.registrar_dir)
    assert chosen.state_dir.is_relative_to(chosen.plugins_dir)


@pytest.mark.case("C145")
def test_one_value_moves_everything_of_the_kubelet():
    chosen = settings_of("node", "another kubelet root")

    assert (str(chosen.plugins_dir), str(chosen.registrar_dir)) == (
        "/data01/kubelet/plugins",
        "/data01/kubelet/plugins_registry",
    )
    assert "/var/lib/kubelet" not in str(rendered("another kubelet root").objects)
