"""The image: what is in it, how it starts. The Dockerfile's and the lab's, made without a registry, are alike."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from lab import driver_image
from lab.images import write_archive

from tests.component.deploy.rendering import CHART, DEPLOY, ROOT

DOCKERFILE = (DEPLOY / "image" / "Dockerfile").read_text()
PROCESSES = ("node", "mps", "controller", "webhook")
NOBODY = 65532


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The image's file system, unpacked."""
    work = tmp_path_factory.mktemp("image")
    image = driver_image.driver_image(work)
    tree = work / "root"
    for layer in image.below:
        tree.mkdir(exist_ok=True)
        subprocess.run(["tar", "-xf", layer, "-C", tree], check=True)
    yield tree
    shutil.rmtree(tree)


def run(root, *arguments):
    """Run a command in the image as a container would, as nobody and with nothing to write to."""
    image = driver_image._ENTRYPOINT
    return subprocess.run(
        ["chroot", f"--userspec={NOBODY}:{NOBODY}", root, *image, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )


def test_it_says_the_version_of_the_project(root):
    made = run(root, "--version")

    assert made.stderr == ""
    assert made.stdout == f"dra-gpu {driver_image.image_name().rpartition(':v')[2]}\n"


@pytest.mark.parametrize("process", PROCESSES)
def test_every_process_starts_with_what_is_in_it(process, root):
    made = run(root, process, "--help")

    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith(f"usage: dra-gpu {process} ")


def test_no_module_of_the_driver_lacks_a_package(root):
    """The command line of users and the explanation of the scheduler are not part of the image."""
    names = sorted(
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in (ROOT / "src" / "dra_gpu").rglob("*.py")
        if path.name not in {"__main__.py", "generate.py"} and not {"cli", "scheduler"} & set(path.parts)
    )
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name.removesuffix('.__init__'))"

    made = subprocess.run(
        ["chroot", root, "/opt/dra-gpu/bin/python", "-I", "-c", program, *names],
        capture_output=True,
        text=True,
        check=False,
    )

    assert made.returncode == 0, made.stderr


def test_the_simulator_and_tools_are_not_in_it(root):
    names = {path.name for path in root.rglob("*")}

    assert not names & {"dra_gpu_sim", "pip", "pytest", "gcc", "cc", "sh", "bash"}


def test_every_source_has_its_bytecode(root):
    sources = [*(root / "opt").rglob("*.py")]
    assert sources

    missing = [path for path in sources if not list((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"))]

    assert missing == []


def test_the_dockerfile_starts_it_by_the_same_command_and_as_the_same_user():
    entrypoint = re.search(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)
    user = re.search(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)

    assert entrypoint is not None
    assert eval(entrypoint[1]) == list(driver_image._ENTRYPOINT)
    assert user is not None
    assert user[1] == driver_image._USER == f"{NOBODY}:{NOBODY}"
    assert f"runAsUser: {NOBODY}" in (CHART / "templates" / "_helpers.tpl").read_text()


def test_the_dockerfile_installs_by_hash_and_compiles_nothing():
    (base,) = re.findall(r"^ARG BASE=(\S+)$", DOCKERFILE, re.MULTILINE)

    assert re.search(r":\d", base)
    assert "--require-hashes" in DOCKERFILE
    assert "--only-binary :all:" in DOCKERFILE
    for word in ("gcc", "build-essential", "apt-get", "curl", ":latest", "dra_gpu_sim"):
        assert word not in DOCKERFILE


def test_what_the_dockerfile_copies_is_there_and_let_through():
    let_through = (DEPLOY / "image" / "Dockerfile.dockerignore").read_text()

    for source in re.findall(r"^COPY (?!--from)(\S+) \S+$", DOCKERFILE, re.MULTILINE):
        assert (ROOT / source).exists()
        assert f"!{source}\n" in let_through


def test_the_image_has_the_packages_that_the_tests_ran_with():
    def pinned(name):
        return dict(re.findall(r"(?m)^([\w.-]+)==([^ ;]+)", (ROOT / "requirements" / f"{name}.lock").read_text()))

    image, dev, node = pinned("image"), pinned("dev"), pinned("node")

    assert image.items() <= dev.items()
    assert node.items() <= image.items()


def test_the_charts_default_image_is_the_one_that_the_lab_makes():
    assert Path(CHART / "values.yaml").read_text().count(driver_image._REPOSITORY) == 1


def test_equal_sources_give_equal_images(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_archive([driver_image.driver_image(tmp_path / name)], tmp_path / f"{name}.tar")

    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
