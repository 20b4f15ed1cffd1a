"""``dra-gpu-sim``: make, show, break and remove simulated GPUs."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dra_gpu_sim.boards import PROFILES
from dra_gpu_sim.build import BuildError
from dra_gpu_sim.node import SimulatedNode
from dra_gpu_sim.state import MIG_NONE, NO_INSTANCE, SimState, in_use
from dra_gpu_sim.statefile import StateError

_COMPUTE_MODES = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}
_TIME_SLICES = ("Default", "Short", "Medium", "Long")
_MIB = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 on success, 1 with a message on stderr otherwise."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except (BuildError, StateError, OSError, RuntimeError, ValueError) as error:
        print(f"dra-gpu-sim: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dra-gpu-sim", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    create = commands.add_parser("create", help="make a node")
    create.add_argument("root", type=Path)
    create.add_argument("--profile", default="H100", help=", ".join(profile.name for profile in PROFILES.values()))
    create.add_argument("--gpus", type=int, help="number of GPUs (default: the profile's)")
    create.add_argument("--driver-version")
    create.add_argument("--seed", help="what UUIDs follow from (default: the root's path)")
    create.add_argument("--set", dest="settings", action="append", default=[], metavar="gpu.N.FIELD=VALUE")
    create.add_argument("--without-symbol", dest="without", action="append", default=[], metavar="NVML_CALL")
    create.add_argument("--no-call-log", action="store_true", help="do not log calls (for benchmarks)")
    create.add_argument("--regular-files", action="store_true", help="files instead of character devices in dev/")
    create.add_argument("--force", action="store_true", help="replace a node that exists")
    create.set_defaults(run=_create)

    profiles = commands.add_parser("profiles", help="list the profiles")
    profiles.set_defaults(run=_profiles)

    show = commands.add_parser("show", help="print the GPUs of a node")
    show.add_argument("root", type=Path)
    show.add_argument("-o", "--output", choices=("table", "json"), default="table")
    show.set_defaults(run=_show)

    inject = commands.add_parser("inject", help="break something")
    inject.add_argument("root", type=Path)
    inject.add_argument("--call", help="NVML call, a beginning with *, or e.g. 'nvidia-smi compute-policy'")
    inject.add_argument("--gpu", type=int, help="index of the GPU (default: every GPU)")
    inject.add_argument("--code", type=int, default=0, help="NVML return code to answer")
    inject.add_argument("--delay-ms", type=int, default=0)
    inject.add_argument("--block", action="store_true", help="hang until cleared")
    inject.add_argument("--count", type=int, help="times it happens (default: every call)")
    inject.add_argument("--lost", action="store_true", help="the GPU falls off the bus")
    inject.add_argument("--returned", action="store_true", help="the GPU comes back")
    inject.add_argument("--xid", type=int, help="report an Xid")
    inject.add_argument("--gi", type=int, default=NO_INSTANCE, help="GPU instance of the Xid")
    inject.add_argument("--ci", type=int, default=NO_INSTANCE, help="compute instance of the Xid")
    inject.add_argument("--recovery-action", type=int, help="what NVML field 230 recommends")
    inject.add_argument("--mig-pending", action="store_true", help="MIG mode changes wait for a reset")
    inject.add_argument("--mig-live", action="store_true", help="MIG mode changes take effect at once")
    inject.add_argument("--gpu-count", type=int, help="the driver has bound this many GPUs")
    inject.add_argument("--reboot", action="store_true", help="new boot id, volatile settings gone")
    inject.add_argument("--call-log", choices=("on", "off"))
    inject.set_defaults(run=_inject)

    clear = commands.add_parser("clear", help="remove injected faults")
    clear.add_argument("root", type=Path)
    clear.add_argument("--serial", type=int)
    clear.add_argument("--call")
    clear.add_argument("--gpu", type=int)
    clear.set_defaults(run=_clear)

    calls = commands.add_parser("calls", help="print, filter or count the logged calls")
    calls.add_argument("root", type=Path)
    calls.add_argument("--call", help="name; may hold * and ?")
    calls.add_argument("--gpu", type=int)
    calls.add_argument("--pid", type=int)
    calls.add_argument("--count", action="store_true", help="how often each call was made")
    calls.add_argument("--forget", action="store_true", help="empty the log afterwards")
    calls.set_defaults(run=_calls)

    destroy = commands.add_parser("destroy", help="remove a node")
    destroy.add_argument("root", type=Path)
    destroy.set_defaults(run=_destroy)
    return parser


def _create(options: argparse.Namespace) -> None:
    if options.force and (options.root / "state").exists():
        SimulatedNode(options.root).destroy()
    node = SimulatedNode.create(
        options.root,
        options.profile,
        gpus=options.gpus,
        driver_version=options.driver_version,
        seed=options.seed,
        settings=options.settings,
        without_symbols=options.without,
        log_calls=not options.no_call_log,
        devices=not options.regular_files,
    )
    print(f"{len(node.uuids)} simulated GPUs ({options.profile}) in {node.root}; driver root {node.driver_root}")


def _profiles(_options: argparse.Namespace) -> None:
    for profile in PROFILES.values():
        print(f"{profile.name:<14} {profile.description}")


def _rows(state: SimState) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for index in range(state.gpu_count):
        gpu = state.gpus[index]
        processes = [slot for slot in in_use(state.processes) if slot.gpu == index]
        mig = "N/A" if gpu.mig_support == MIG_NONE else "Enabled" if gpu.mig_current else "Disabled"
        if gpu.mig_support != MIG_NONE and gpu.mig_pending != gpu.mig_current:
            mig += f" ({'Enabled' if gpu.mig_pending else 'Disabled'} pending)"
        rows.append(
            {
                "index": index,
                "name": gpu.name.decode(),
                "uuid": gpu.uuid.decode(),
                "pci": gpu.bus_id.decode() or "-",
                "memoryUsedMiB": sum(slot.memory for slot in processes) // _MIB,
                "memoryTotalMiB": gpu.memory_total // _MIB,
                "computeMode": _COMPUTE_MODES.get(gpu.compute_mode, str(gpu.compute_mode)),
                "mig": mig,
                "instances": [
                    f"{gpu.profiles[gi.profile].name.decode().removeprefix('MIG ')}@{gi.start}" for gi in in_use(gpu.gi)
                ],
                "timeSlice": _TIME_SLICES[gpu.time_slice] if gpu.time_slice_supported else "N/A",
                "processes": [slot.pid for slot in processes],
                "faults": _faults(state, index),
            }
        )
    return rows


def _faults(state: SimState, index: int) -> list[str]:
    gpu = state.gpus[index]
    words = ["lost"] * bool(gpu.lost) + ["absent"] * (not gpu.present)
    if gpu.recovery_action:
        words.append(f"recovery action {gpu.recovery_action}")
    for slot in in_use(state.faults):
        if slot.builtin or slot.gpu not in (-1, index):
            continue
        effects = [f"code {slot.code}"] * bool(slot.code) + [f"{slot.delay_ms} ms"] * bool(slot.delay_ms)
        effects += ["blocked"] * bool(slot.block) + [f"{slot.remaining} times"] * (slot.remaining >= 0)
        words.append(f"{slot.call.decode()}: {', '.join(effects)}")
    return words


def _show(options: argparse.Namespace) -> None:
    with SimulatedNode(options.root).state() as state:
        rows = _rows(state)
        heading = {"profile": state.profile.decode(), "driverVersion": state.driver_version.decode()}
    if options.output == "json":
        print(json.dumps({**heading, "gpus": rows}, indent=2))
        return
    table = [("GPU", "NAME", "UUID", "PCI", "MEMORY MiB", "MODE", "MIG", "SLICE", "PROCESSES", "FAULTS")]
    for row in rows:
        instances, pids, words = row["instances"], row["processes"], row["faults"]
        assert isinstance(instances, list)
        assert isinstance(pids, list)
        assert isinstance(words, list)
        table.append(
            (
                str(row["index"]),
                str(row["name"]),
                str(row["uuid"]),
                str(row["pci"]),
                f"{row['memoryUsedMiB']}/{row['memoryTotalMiB']}",
                str(row["computeMode"]),
                " ".join([str(row["mig"]), *instances]),
                str(row["timeSlice"]),
                ",".join(map(str, pids)) or "-",
                "; ".join(words) or "-",
            )
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _one_gpu(options: argparse.Namespace) -> int:
    if options.gpu is None:
        raise ValueError("this needs --gpu: which GPU shall it happen to?")
    return int(options.gpu)


def _inject(options: argparse.Namespace) -> None:
    node = SimulatedNode(options.root)
    done = False
    if options.call:
        serial = node.inject(
            options.call,
            gpu=options.gpu,
            code=options.code,
            delay_ms=options.delay_ms,
            block=options.block,
            count=options.count,
        )
        print(f"fault {serial}")
        done = True
    actions = {
        "lost": lambda: node.lose_gpu(_one_gpu(options)),
        "returned": lambda: node.return_gpu(_one_gpu(options)),
        "mig_pending": lambda: node.set_mig_pending(_one_gpu(options), pending=True),
        "mig_live": lambda: node.set_mig_pending(_one_gpu(options), pending=False),
        "reboot": node.reboot,
    }
    for name, action in actions.items():
        if getattr(options, name):
            action()
            done = True
    if options.gpu_count is not None:
        node.set_gpu_count(options.gpu_count)
        done = True
    if options.xid is not None:
        node.xid(_one_gpu(options), options.xid, gi=options.gi, ci=options.ci, recovery_action=options.recovery_action)
        done = True
    elif options.recovery_action is not None:
        node.set_recovery_action(_one_gpu(options), options.recovery_action)
        done = True
    if options.call_log:
        node.log_calls(on=options.call_log == "on")
        done = True
    if not done:
        raise ValueError("nothing to inject: see dra-gpu-sim inject --help")


def _clear(options: argparse.Namespace) -> None:
    print(SimulatedNode(options.root).clear(serial=options.serial, call=options.call, gpu=options.gpu), "cleared")


def _calls(options: argparse.Namespace) -> None:
    node = SimulatedNode(options.root)
    calls = node.calls(options.call, gpu=options.gpu, pid=options.pid)
    if options.count:
        for name, number in Counter(call.name for call in calls).most_common():
            print(f"{number:>8}  {name}")
    else:
        for call in calls:
            gpu = "-" if call.gpu is None else call.gpu
            print(f"{call.time:.6f}  {call.pid:>7}  {gpu!s:>3}  {call.result:>3}  {call.name}  {call.detail}".rstrip())
    if options.forget:
        node.forget_calls()


def _destroy(options: argparse.Namespace) -> None:
    SimulatedNode(options.root).destroy()


if __name__ == "__main__":
    sys.exit(main())
