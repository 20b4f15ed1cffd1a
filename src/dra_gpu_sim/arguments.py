"""The command line of ``dra-gpu-sim``."""

import argparse
from pathlib import Path

from dra_gpu_sim.boards import PROFILES
from dra_gpu_sim.state import NO_INSTANCE

_ROOT = "directory of the simulated node"
_GPU = "index of the GPU (default: every GPU)"


def parser() -> argparse.ArgumentParser:
    """The parser; the chosen command is in ``command``."""
    top = argparse.ArgumentParser(
        prog="dra-gpu-sim",
        description="Make, show, break and remove simulated GPUs.",
        epilog="The first node of `make cluster` is /tmp/dra-gpu-lab/node-1/sim.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="command", title="commands")
    _create(commands.add_parser("create", help="make a node"))
    commands.add_parser("profiles", help="list the profiles")
    _show(commands.add_parser("show", help="print the GPUs of a node"))
    _inject(commands.add_parser("inject", help="break something"))
    _clear(commands.add_parser("clear", help="remove injected faults"))
    _calls(commands.add_parser("calls", help="print, filter or count the logged calls"))
    _root(commands.add_parser("destroy", help="remove a node"))
    return top


def _create(create: argparse.ArgumentParser) -> None:
    _root(create)
    create.add_argument("--profile", default="H100", help=", ".join(profile.name for profile in PROFILES.values()))
    create.add_argument("--gpus", type=int, help="number of GPUs (default: the profile's)")
    create.add_argument("--driver-version", help="version of the NVIDIA driver (default: the profile's)")
    create.add_argument("--seed", help="what UUIDs follow from (default: the root's path)")
    create.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="gpu.N.FIELD=VALUE",
        help="change one GPU; repeatable",
    )
    create.add_argument(
        "--without-symbol",
        dest="without",
        action="append",
        default=[],
        metavar="NVML_CALL",
        help="a call that this NVML lacks; repeatable",
    )
    create.add_argument("--no-call-log", action="store_true", help="do not log calls (for benchmarks)")
    create.add_argument("--regular-files", action="store_true", help="files instead of character devices in dev/")
    create.add_argument("--force", action="store_true", help="replace a node that exists")


def _show(show: argparse.ArgumentParser) -> None:
    _root(show)
    show.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")


def _inject(inject: argparse.ArgumentParser) -> None:
    _root(inject)
    inject.add_argument("--call", help="NVML call, a beginning with *, or e.g. 'nvidia-smi compute-policy'")
    inject.add_argument("--gpu", type=int, help=_GPU)
    inject.add_argument("--code", type=int, default=0, help="NVML return code to answer")
    inject.add_argument("--delay-ms", type=int, default=0, help="answer so many milliseconds later")
    inject.add_argument("--block", action="store_true", help="hang until cleared")
    inject.add_argument("--count", type=int, help="times it happens (default: every call)")
    inject.add_argument("--lost", action="store_true", help="the GPU falls off the bus; with --xid, saying so before")
    inject.add_argument("--returned", action="store_true", help="the GPU comes back, bound anew")
    inject.add_argument("--unbound", action="store_true", help="the driver gives the GPU up")
    inject.add_argument("--bound", action="store_true", help="the driver binds the GPU (anew)")
    inject.add_argument("--at", metavar="ADDRESS", help="the board moves to another slot and is bound there")
    inject.add_argument("--driver-reloaded", action="store_true", help="the kernel module is unloaded and loaded again")
    inject.add_argument(
        "--remapping", choices=("none", "pending", "failure"), help="memory rows to be replaced, or none left for it"
    )
    inject.add_argument("--fabric-health", type=lambda text: int(text, 0), help="NVML's mask of fabric health")
    inject.add_argument("--xid", type=int, help="report an Xid")
    inject.add_argument("--gi", type=int, default=NO_INSTANCE, help="GPU instance of the Xid")
    inject.add_argument("--ci", type=int, default=NO_INSTANCE, help="compute instance of the Xid")
    inject.add_argument("--recovery-action", type=int, help="what NVML field 230 recommends")
    inject.add_argument("--mig-pending", action="store_true", help="MIG mode changes wait for a reset")
    inject.add_argument("--mig-live", action="store_true", help="MIG mode changes take effect at once")
    inject.add_argument("--gpu-count", type=int, help="the driver has bound this many GPUs")
    inject.add_argument("--reboot", action="store_true", help="new boot id, volatile settings gone")
    inject.add_argument("--call-log", choices=("on", "off"), help="whether calls are logged")


def _clear(clear: argparse.ArgumentParser) -> None:
    _root(clear)
    clear.add_argument("--serial", type=int, help="only the fault of this number, as inject printed it")
    clear.add_argument("--call", help="only faults of this call")
    clear.add_argument("--gpu", type=int, help="only faults of the GPU of this index")


def _calls(calls: argparse.ArgumentParser) -> None:
    _root(calls)
    calls.add_argument("--call", help="name; may hold * and ?")
    calls.add_argument("--gpu", type=int, help="only calls on the GPU of this index")
    calls.add_argument("--pid", type=int, help="only calls of this process")
    calls.add_argument("--count", action="store_true", help="how often each call was made")
    calls.add_argument("--forget", action="store_true", help="empty the log afterwards")


def _root(command: argparse.ArgumentParser) -> None:
    command.add_argument("root", type=Path, help=_ROOT)
