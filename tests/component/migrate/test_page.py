"""docs/migrate.md says what is so: its exceptions are those that have a test, its tables are those of the code."""

import re
from pathlib import Path

import pytest

from dra_gpu.node import settings
from tests.component.migrate.cluster import MANIFESTS, smi

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/migrate.md").read_text()
EXCEPTIONS = ("## Exceptions for manifests of the DRA driver", "## Exceptions for the device plugin")
#: By the other driver's variable: the setting, what is set, and what comes of it.
ENVIRONMENT = {
    "NODE_NAME": ("node_name", "a", "a"),
    "KUBECONFIG": ("kubeconfig", "/k", Path("/k")),
    "CDI_ROOT": ("cdi_root", "/etc/cdi", Path("/etc/cdi")),
    "NVIDIA_DRIVER_ROOT": ("driver_root.host", "/run/nvidia/driver", Path("/run/nvidia/driver")),
    "DRIVER_ROOT_CTR_PATH": ("driver_root.process", "/driver-root", Path("/driver-root")),
    "HOST_ROOT": ("host_root.process", "/host-root", Path("/host-root")),
    "NVIDIA_CDI_HOOK_PATH": ("hook_program", "/usr/bin/hook", Path("/usr/bin/hook")),
    "KUBELET_REGISTRAR_DIRECTORY_PATH": ("registrar_dir", "/reg", Path("/reg")),
    "KUBELET_PLUGINS_DIRECTORY_PATH": ("plugins_dir", "/plugins", Path("/plugins")),
    "ADDITIONAL_XIDS_TO_IGNORE": ("health.xid_rules", "13, 31", {13: None, 31: None}),
    "CONSUMABLE_SHARES": ("consumable_shares.counts_memory", "memory", True),
}


def section(heading: str) -> str:
    """What stands under a heading, up to the next one of its rank."""
    marks, _, _ = heading.partition(" ")
    after = PAGE.split(f"\n{heading}\n", 1)[1]
    return re.split(rf"^#{{2,{len(marks)}}} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """The rows of the tables in a text, without their heads."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return [line for index, line in enumerate(lines) if "---" not in lines[min(index + 1, len(lines) - 1)][0] + line[0]]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def exceptions() -> dict[str, str]:
    """What the page says about each exception, by its heading."""
    parts = (section(part) for part in EXCEPTIONS)
    found = [entry.partition("\n") for part in parts for entry in re.split(r"^### ", part, flags=re.MULTILINE)[1:]]
    return {heading: text for heading, _, text in found}


def test_every_exception_of_the_page_has_a_test_and_every_such_test_is_on_the_page():
    carried = {
        heading
        for path in (ROOT / "tests").rglob("test_*.py")
        for heading in re.findall(r'mark\.migration\("([^"]+)"\)', path.read_text())
    }

    assert exceptions().keys() == carried


def test_every_exception_names_the_way_out():
    assert [heading for heading, text in exceptions().items() if "**" not in text] == []


def test_every_manifest_has_a_test():
    others = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    tests = "".join(path.read_text() for path in others)

    # Some are named by what they differ in.
    named = [
        name.replace("{version}", one) for name in re.findall(r'"(\S+\.yaml)"', tests) for one in ("v1beta1", "v1beta2")
    ]
    named = [name.replace("{mode}", one) for name in named for one in ("memory", "number")]
    assert {path.name for path in MANIFESTS.iterdir()} == set(named)


def test_the_settings_of_the_page_are_taken_from_the_other_drivers_variables():
    listed = {words(row[0])[0]: words(row[2])[0] for row in rows(section("### Settings"))}
    environment = {name: value for name, (_, value, _) in ENVIRONMENT.items()}

    chosen = settings.parse(["--vendor=nvidia"], environment | {"FEATURE_GATES": "DynamicMIG=true", "IMAGE_NAME": "x"})

    assert listed.keys() == ENVIRONMENT.keys()
    for path, _, expected in ENVIRONMENT.values():
        found = chosen
        for name in path.split("."):
            found = getattr(found, name)
        assert found == expected, path


@pytest.mark.migration("Feature gates and other flags")
def test_an_unknown_flag_is_refused_by_its_name(capsys):
    with pytest.raises(SystemExit) as ended:
        settings.parse(["--vendor=nvidia", "--node-name=a", "--feature-gates=DynamicMIG=true"], {})

    assert ended.value.code == 2
    assert "--feature-gates" in capsys.readouterr().err


def test_every_flag_of_the_page_exists(capsys):
    with pytest.raises(SystemExit):
        settings.parse(["--help"], {})
    known = capsys.readouterr().out

    flags = {word.partition("=")[0] for word in words(PAGE) if word.startswith("--")} - {"--feature-gates"}
    assert [flag for flag in flags if f" {flag} " not in known] == []


async def test_the_attributes_and_capacities_of_the_page_are_published(make_node):
    async def cut_by_hand(cluster) -> None:
        await smi(cluster, "-i", "1", "-mig", "1")
        await smi(cluster, "mig", "-i", "1", "-cgi", "9:0", "-C")

    node = await make_node(gpus=2, before=cut_by_hand)
    of_type = {
        words(row[0])[0]: (words(row[1]), words(row[2])) for row in rows(section("### What stays as it is"))[-2:]
    }
    published = node.published()

    assert of_type.keys() == {"gpu", "mig"}
    static = next(one for one in published.values() if "uuid" in one["attributes"] and "-mig-" in one["name"])
    for kind, device in (("gpu", published["gpu-0"]), ("mig", static)):
        attributes, capacities = of_type[kind]
        assert set(attributes) <= {name.rpartition("/")[2] for name in device["attributes"]}
        assert set(capacities) == set(device["capacity"])
    new = words(re.search(r"New here,.*?\.\n", PAGE, re.DOTALL)[0])
    there = {name for attributes, _ in of_type.values() for name in attributes}
    mine = {name.rpartition("/")[2] for device in published.values() for name in device["attributes"]}
    assert mine - there - {"gpuModuleID"} <= set(new)
