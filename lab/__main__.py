"""`python -m lab`: build, up, down, status, kubeconfig, driver."""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from lab import build, cluster, controlplane, deployment, recipe
from lab.controller import controller_process
from lab.errors import LabError
from lab.layout import Layout
from lab.mps import mps_process
from lab.progress import Progress
from lab.settings import Settings

_START = "start one with `make cluster`"


def main() -> int:
    """Run one command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    build_parser = commands.add_parser(
        "build", help="build all programs into the cache (minutes the first time, then nothing)"
    )
    build_parser.add_argument(
        "--background", action="store_true", help="return at once; a later build waits for this one"
    )
    build_parser.add_argument("--helm-only", action="store_true", help="only what the tests without a cluster need")
    up_parser = commands.add_parser("up", help="build what is missing and start a cluster")
    up_parser.add_argument(
        "--nodes", type=int, default=1, choices=range(1, 10), metavar="N", help="how many nodes (default 1)"
    )
    commands.add_parser("down", help="stop the cluster and remove all but its logs")
    commands.add_parser("status", help="say what runs; exit 1 unless everything does")
    commands.add_parser("kubeconfig", help="print the path of the administrator's kubeconfig")
    driver_parser = commands.add_parser(
        "driver", help="the driver with simulated GPUs on every node, as host processes"
    )
    driver_parser.add_argument(
        "action",
        choices=("start", "stop"),
        help="start: apply deploy/, simulate GPUs, start controller, MPS services and plugins; stop: end them all",
    )
    driver_parser.add_argument(
        "--profile",
        default="H100",
        help="model of the simulated GPUs (default H100); `dra-gpu-sim profiles` lists them",
    )
    driver_parser.add_argument("--gpus", type=int, default=8, metavar="N", help="how many per node (default 8)")
    arguments = parser.parse_args()
    progress = Progress()
    # SIGTERM, as from `make` or a CI that gives up, ends what was begun (a compiler, half a cluster) like Ctrl-C does.
    signal.signal(signal.SIGTERM, _terminated)
    try:
        layout = Layout.from_environment()
        match arguments.command:
            case "build" if arguments.background:
                print(f"building in the background; progress: {build.build_in_background()}")
            case "build":
                # Helm first: the tests that need no cluster wait for it.
                build.build(progress, recipe.helm())
                if not arguments.helm_only:
                    print(build.build(progress))
            case "up":
                cluster.up(layout, arguments.nodes, progress)
            case "down":
                cluster.down(layout, progress)
            case "status":
                return _status(layout)
            case "kubeconfig":
                print(layout.kubeconfig)
            case "driver":
                _driver(layout, arguments, progress)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


def _terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _driver(layout: Layout, arguments: argparse.Namespace, progress: Progress) -> None:
    if arguments.action == "stop":
        deployment.stop_drivers(layout, progress)
        return
    settings = Settings.load(layout)
    if settings is None:
        raise LabError(f"no cluster at {layout.state}: {_START}")
    profile, gpus = arguments.profile, arguments.gpus
    deployment.start_drivers(layout, settings, profile=profile, gpus=gpus, progress=progress)
    print(_next(layout))


def _next(layout: Layout) -> str:
    """Return what to type now, ready to be pasted: kubectl, and kubectl-gpu from this virtual environment."""
    programs = f"{build.bin_dir()}:{Path(sys.executable).parent}"
    return f"""
Try next:
  export KUBECONFIG={layout.kubeconfig} PATH={programs}:$PATH
  kubectl gpu list
  kubectl apply -f examples/whole-gpu.yaml
  kubectl wait --for=condition=Ready pod/whole-gpu && kubectl logs whole-gpu
  kubectl apply -f examples/four-jobs-one-gpu.yaml
  make cluster-down"""


def _status(layout: Layout) -> int:
    settings = Settings.load(layout)
    if settings is None:
        print(f"no cluster at {layout.state}: {_START}")
        return 1
    dead = set(cluster.dead_processes(layout, settings))
    services = [process for node in settings.all_nodes(layout) if (process := mps_process(layout, node)).identity()]
    services += [controller] if (controller := controller_process(layout)).identity() else []
    for process in [*cluster.processes(layout, settings), *deployment.drivers(layout), *services]:
        identity = None if process.name in dead else process.running()
        print(f"{process.name:26} {'pid ' + str(identity.pid) if identity else 'DEAD':12} {process.log}")
    if "kube-apiserver" in dead:
        return 1
    api = controlplane.admin_api(layout, settings)
    ready = cluster.nodes_ready(api) if api.ready() else []
    print(f"nodes ready: {', '.join(ready) or 'none'} of {settings.nodes}")
    return 0 if not dead and len(ready) == settings.nodes else 1


if __name__ == "__main__":
    sys.exit(main())
