"""NVIDIA's container toolkit is found on the host, and only hooks that it has are used."""

from pathlib import Path, PurePosixPath

import pytest

from dra_gpu.vendors.nvidia.driver_root import DriverRoot
from dra_gpu.vendors.nvidia.toolkit import HOOKS, Toolkit, ToolkitSearch
from tests.unit.vendors.nvidia_cdi.driver_trees import UBUNTU, VERSION, install, on_host

OPERATOR = "usr/local/nvidia/toolkit/nvidia-cdi-hook"


def program(host: Path, place: str, *hooks: str, mode: int = 0o755) -> None:
    path = host / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF" + b"\0".join(hook.encode() for hook in hooks))
    path.chmod(mode)


def test_a_host_without_the_toolkit_has_none(tmp_path: Path) -> None:
    assert ToolkitSearch(on_host(tmp_path, "/")).find() is None
    assert ToolkitSearch(None).find() is None


@pytest.mark.parametrize("place", [OPERATOR, "usr/bin/nvidia-cdi-hook", "usr/bin/nvidia-ctk"])
def test_the_program_is_named_by_its_path_on_the_host(tmp_path: Path, place: str) -> None:
    program(tmp_path, place, *HOOKS)

    assert ToolkitSearch(on_host(tmp_path, "/")).find() == Toolkit(PurePosixPath("/", place))


def test_what_cannot_be_executed_is_not_the_program(tmp_path: Path) -> None:
    program(tmp_path, "usr/bin/nvidia-cdi-hook", *HOOKS, mode=0o644)

    assert ToolkitSearch(on_host(tmp_path, "/")).find() is None


def test_a_configured_program_is_taken_as_it_is_also_where_the_host_is_not_seen(tmp_path: Path) -> None:
    configured = PurePosixPath("/opt/hooks/nvidia-cdi-hook")

    assert ToolkitSearch(None, configured).find() == Toolkit(configured)
    assert ToolkitSearch(on_host(tmp_path, "/"), configured).find() == Toolkit(configured)


def test_hooks_that_an_old_release_lacks_are_left_out(tmp_path: Path) -> None:
    program(tmp_path, "usr/bin/nvidia-ctk", "create-symlinks", "update-ldcache")

    toolkit = ToolkitSearch(on_host(tmp_path, "/")).find()

    assert toolkit is not None
    assert toolkit.hooks == {"create-symlinks", "update-ldcache"}


def test_a_toolkit_that_is_upgraded_later_is_seen(tmp_path: Path) -> None:
    search = ToolkitSearch(on_host(tmp_path, "/"))
    assert search.find() is None
    program(tmp_path, "usr/bin/nvidia-cdi-hook", "update-ldcache")
    before = search.find()

    program(tmp_path, "usr/bin/new", *HOOKS)
    (tmp_path / "usr/bin/new").replace(tmp_path / "usr/bin/nvidia-cdi-hook")

    after = search.find()
    assert before is not None
    assert after is not None
    assert (before.hooks, after.hooks) == ({"update-ldcache"}, set(HOOKS))


def test_behind_the_operators_wrapper_the_real_program_is_asked(tmp_path: Path) -> None:
    program(tmp_path, OPERATOR, "#!/bin/sh")
    program(tmp_path, f"{OPERATOR}.real", "update-ldcache")

    toolkit = ToolkitSearch(on_host(tmp_path, "/")).find()

    assert toolkit is not None
    assert toolkit.hooks == {"update-ldcache"}


def test_debians_real_ldconfig_is_named_to_the_hook(tmp_path: Path) -> None:
    program(tmp_path, "usr/bin/nvidia-cdi-hook", *HOOKS)
    program(tmp_path, "sbin/ldconfig.real")

    toolkit = ToolkitSearch(on_host(tmp_path, "/")).find()

    assert toolkit is not None
    assert toolkit.ldconfig == PurePosixPath("/sbin/ldconfig.real")


def test_hooks_run_in_the_container_before_it_starts_with_what_they_need(tmp_path: Path) -> None:
    files = DriverRoot(on_host(install(tmp_path), "/run/nvidia/driver")).files()

    hooks = Toolkit(PurePosixPath("/usr/bin/nvidia-cdi-hook")).edits(files)

    links, compat, ldcache, nodes = (hook.args for hook in hooks)
    assert {(hook.hook_name, hook.path) for hook in hooks} == {("createContainer", "/usr/bin/nvidia-cdi-hook")}
    assert links[:2] == ("nvidia-cdi-hook", "create-symlinks")
    assert f"libcuda.so.{VERSION}::/{UBUNTU}/libcuda.so.1" in links
    assert compat == ("nvidia-cdi-hook", "enable-cuda-compat", f"--host-driver-version={VERSION}")
    assert ldcache == ("nvidia-cdi-hook", "update-ldcache", "--folder", f"/{UBUNTU}")
    assert nodes == ("nvidia-cdi-hook", "disable-device-node-modification")


def test_the_older_program_has_its_hooks_below_a_command_of_its_own(tmp_path: Path) -> None:
    files = DriverRoot(on_host(install(tmp_path), "/")).files()

    hooks = Toolkit(PurePosixPath("/usr/bin/nvidia-ctk"), frozenset({"update-ldcache"})).edits(files)

    assert [hook.args[:3] for hook in hooks] == [("nvidia-ctk", "hook", "update-ldcache")]
