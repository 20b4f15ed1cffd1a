"""The container runtimes' own library accepts what is written, and gives each container what was allocated to it."""

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dra_gpu.cdi.spec import ContainerEdits, Device, DeviceNode, Hook, Mount, Spec, minimum_version
from dra_gpu.cdi.store import SpecStore
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.vendors.nvidia.driver_root import DriverRoot
from dra_gpu.vendors.nvidia.edits import NvidiaEdits
from tests.component.go_programs import builds_go
from tests.unit.vendors.nvidia_cdi.driver_trees import VERSION, install, make_nodes, on_host, published

pytestmark = builds_go

VENDOR = "k8s.gpu.nvidia.com"
KIND = f"{VENDOR}/claim"


@dataclass
class Node:
    """A node with two GPUs, whose claims are written as the driver writes them."""

    directory: Path
    edits: NvidiaEdits
    program: Path
    ids: dict[str, str] = field(default_factory=dict)

    def prepare(self, uid: str, *devices: PublishedDevice) -> list[str]:
        names = [f"{uid}-{device.name}" for device in devices]
        spec = Spec(
            cdi_version="",
            kind=KIND,
            devices=tuple(
                Device(name, self.edits.device_edits([device])) for name, device in zip(names, devices, strict=True)
            ),
            container_edits=self.edits.common_edits(),
        )
        SpecStore(self.directory, VENDOR).write(uid, spec)
        return [f"{KIND}={name}" for name in names]

    def container(self, *ids: str) -> dict[str, object]:
        """Return the OCI specification of a container that was given the devices."""
        answer = subprocess.run(
            [self.program, "resolve", self.directory, *ids], capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stderr
        container: dict[str, object] = json.loads(answer.stdout)
        return container

    def gpu_nodes(self, *ids: str) -> list[str]:
        linux = self.container(*ids)["linux"]
        assert isinstance(linux, dict)
        return [device["path"] for device in linux["devices"] if device["path"][-1].isdigit()]


@pytest.fixture(params=["/dev", "/run/nvidia/driver/dev"])
def node(request: pytest.FixtureRequest, tmp_path: Path, go_cdi: Path) -> Node:
    root = install(tmp_path / "root")
    dev = make_nodes(tmp_path / "dev", "nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1")
    edits = NvidiaEdits(
        DriverRoot(on_host(root, "/run/nvidia/driver")),
        on_host(dev, request.param),
        hook_program=PurePosixPath("/usr/bin/nvidia-cdi-hook"),
    )
    return Node(tmp_path / "cdi", edits, go_cdi)


@pytest.mark.case("C43")
def test_every_id_of_two_claims_resolves_to_exactly_the_allocated_gpu(node: Node) -> None:
    (first,) = node.prepare("0a1b2c3d-0000-4000-8000-00000000000a", published(0))
    (second,) = node.prepare("f0000000-0000-4000-8000-00000000000b", published(1))

    assert node.gpu_nodes(first) == ["/dev/nvidia0"]
    assert node.gpu_nodes(second) == ["/dev/nvidia1"]


@pytest.mark.case("C16")
def test_containers_of_one_claim_get_the_devices_of_their_requests(node: Node) -> None:
    left, right = node.prepare("0a1b2c3d-0000-4000-8000-00000000000a", published(0), published(1))

    assert node.gpu_nodes(left) == ["/dev/nvidia0"]
    assert node.gpu_nodes(right) == ["/dev/nvidia1"]
    assert node.gpu_nodes(left, right) == ["/dev/nvidia0", "/dev/nvidia1"]


@pytest.mark.case("C46")
def test_two_claims_in_one_container_give_both_gpus_and_one_set_of_libraries(node: Node) -> None:
    ids = [
        *node.prepare("0a1b2c3d-0000-4000-8000-00000000000a", published(0)),
        *node.prepare("f0000000-0000-4000-8000-00000000000b", published(1)),
    ]

    container = node.container(*ids)

    assert node.gpu_nodes(*ids) == ["/dev/nvidia0", "/dev/nvidia1"]
    mounts = container["mounts"]
    process = container["process"]
    assert isinstance(mounts, list)
    assert isinstance(process, dict)
    places = [mount["destination"] for mount in mounts]
    assert len(places) == len(set(places))
    assert f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}" in places
    assert process["env"] == ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu"]


def test_a_container_may_open_its_gpu_and_nothing_else_of_that_kind(node: Node) -> None:
    (first,) = node.prepare("0a1b2c3d-0000-4000-8000-00000000000a", published(0))
    nodes = [*node.edits.common_edits().device_nodes, *node.edits.device_edits([published(0)]).device_nodes]

    linux = node.container(first)["linux"]

    assert isinstance(linux, dict)
    allowed = [(rule["type"], rule["major"], rule["minor"], rule["access"]) for rule in linux["resources"]["devices"]]
    assert allowed == [("c", entry.major, entry.minor, "rw") for entry in nodes]


_WORD = st.text("ab09.-_", min_size=1, max_size=4)
_EDITS = st.builds(
    ContainerEdits,
    env=st.lists(_WORD.map("{}=1".format), max_size=1).map(tuple),
    device_nodes=st.lists(
        st.builds(
            DeviceNode, path=_WORD, host_path=st.sampled_from(["", "/host"]), minor=st.sampled_from([None, 0, 3])
        ),
        max_size=2,
    ).map(tuple),
    mounts=st.lists(
        st.builds(Mount, host_path=_WORD, container_path=_WORD, type=st.sampled_from(["", "tmpfs"])), max_size=2
    ).map(tuple),
    hooks=st.lists(st.builds(Hook, hook_name=_WORD, path=_WORD, args=st.just(("a",))), max_size=1).map(tuple),
    additional_gids=st.sampled_from([(), (), (), (44,)]),
)
_SPECS = st.builds(
    Spec,
    cdi_version=st.just(""),
    kind=st.sampled_from(["a.example/class", "a.example/class.x", "class", "a/b/c.d"]),
    devices=st.lists(st.builds(Device, name=_WORD, container_edits=_EDITS), min_size=1, max_size=3).map(tuple),
    container_edits=_EDITS,
)


def many_specifications() -> list[Spec]:
    """Collect specifications first: the program is asked about all of them at once."""
    collected: list[Spec] = []

    @settings(max_examples=400, deadline=None, phases=[Phase.generate], database=None)
    @given(spec=_SPECS)
    def collect(spec: Spec) -> None:
        collected.append(spec)

    collect()
    return collected


def test_the_minimum_version_is_what_the_library_says_for_any_specification(go_cdi: Path) -> None:
    # One that needs a type of mount and nothing newer hardly ever comes up by chance.
    typed = Device(name="ab", container_edits=ContainerEdits(mounts=(Mount("/a", "/b", type="tmpfs"),)))
    specs = [*many_specifications(), Spec("", "a.example/class", (typed,), ContainerEdits())]
    lines = b"\n".join(msgspec.json.encode(spec) for spec in specs)

    answer = subprocess.run([go_cdi, "minimum-versions"], input=lines, capture_output=True, check=True)

    versions = answer.stdout.decode().split()
    differing = [
        (spec, version) for spec, version in zip(specs, versions, strict=True) if minimum_version(spec) != version
    ]
    assert differing == []
    assert set(versions) >= {"0.3.0", "0.4.0", "0.5.0"}
