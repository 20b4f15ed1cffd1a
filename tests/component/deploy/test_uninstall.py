"""What the chart does before an uninstall: one look at claims, with one right, by objects that do not stay."""

import pytest

from dra_gpu.controller.devices_in_use import Release
from tests.component.deploy.rendering import HOOK, NAMESPACE, RELEASE, VALUE_SETS, rendered
from tests.component.deploy.test_flags import settings_of
from tests.component.go_programs import builds_go

pytestmark = builds_go
POLICY = "helm.sh/hook-delete-policy"


def hooks(name):
    return [one for one in rendered(name).objects if one not in rendered(name).lasting]


def test_the_check_runs_before_an_uninstall_and_its_rights_are_there_before_it():
    found = {one["kind"]: one["metadata"]["annotations"] for one in hooks("default")}

    assert found.keys() == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"}
    assert {one[HOOK] for one in found.values()} == {"pre-delete"}
    weights = {kind: int(one["helm.sh/hook-weight"]) for kind, one in found.items()}
    assert max(weight for kind, weight in weights.items() if kind != "Job") < weights["Job"]


def test_none_of_its_objects_stays_whatever_the_answer_was():
    # What comes before a hook that fails is removed as what has succeeded (Helm v4.3, pkg/action/hooks.go).
    for one in hooks("default"):
        policies = set(one["metadata"]["annotations"][POLICY].split(","))
        assert {"before-hook-creation", "hook-succeeded"} <= policies
        assert ("hook-failed" in policies) == (one["kind"] == "Job")


def test_it_may_list_claims_and_nothing_else():
    (role,) = [one for one in hooks("default") if one["kind"] == "ClusterRole"]
    (binding,) = [one for one in hooks("default") if one["kind"] == "ClusterRoleBinding"]
    (job,) = [one for one in hooks("default") if one["kind"] == "Job"]

    assert role["rules"] == [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["list"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject["name"] == job["spec"]["template"]["spec"]["serviceAccountName"]
    bound = [one for one in rendered("default").lasting if subject in one.get("subjects", ())]
    assert bound == []


def test_what_it_says_reaches_whoever_uninstalls_with_the_commands_of_this_release():
    (job,) = [one for one in hooks("default") if one["kind"] == "Job"]

    assert job["metadata"]["annotations"]["helm.sh/hook-output-log-policy"] == "hook-failed"
    assert job["spec"]["backoffLimit"] == 0
    assert settings_of("uninstall-check", "default").release == Release(RELEASE, NAMESPACE, "1")


@pytest.mark.parametrize("name", ["default", "everything"])
def test_it_has_time_for_its_own_wait_and_is_no_permission_when_it_never_runs(name):
    (job,) = [one for one in hooks(name) if one["kind"] == "Job"]

    assert job["spec"]["activeDeadlineSeconds"] > settings_of("uninstall-check", name).wait + 60


def test_an_operator_can_do_without_it():
    name = "uninstalled whoever holds GPUs"
    assert VALUE_SETS[name] == {"uninstallCheck": {"enabled": False}}

    assert hooks(name) == []
    assert "uninstall-check" not in str(rendered(name).objects)
