"""``dra-gpu-sim``: make, show, break and remove simulated GPUs."""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from dra_gpu_sim.arguments import parser
from dra_gpu_sim.boards import PROFILES
from dra_gpu_sim.build import BuildError
from dra_gpu_sim.node import SimulatedNode
from dra_gpu_sim.occupancy import living
from dra_gpu_sim.state import MIG_NONE, SimState, in_use
from dra_gpu_sim.statefile import StateError

_COMPUTE_MODES = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}
_TIME_SLICES = ("Default", "Short", "Medium", "Long")
_MIB = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 on success, 1 with a message on stderr otherwise."""
    options = parser().parse_args(arguments)
    try:
        _COMMANDS[options.command](options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has seen enough, as `head`; nothing is left to be told, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (BuildError, StateError, OSError, RuntimeError, ValueError) as error:
        print(f"dra-gpu-sim: {error}", file=sys.stderr)
        return 1
    return 0


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


def _rows(state: SimState, path: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    alive = list(living(state, path))
    for index in range(state.gpu_count):
        gpu = state.gpus[index]
        processes = [(pid, slot) for pid, slot in alive if slot.gpu == index]
        mig = "N/A" if gpu.mig_support == MIG_NONE else "Enabled" if gpu.mig_current else "Disabled"
        if gpu.mig_support != MIG_NONE and gpu.mig_pending != gpu.mig_current:
            mig += f" ({'Enabled' if gpu.mig_pending else 'Disabled'} pending)"
        rows.append(
            {
                "index": index,
                "name": gpu.name.decode(),
                "uuid": gpu.uuid.decode(),
                "pci": gpu.bus_id.decode() or "-",
                "memoryUsedMiB": sum(slot.memory for _, slot in processes) // _MIB,
                "memoryTotalMiB": gpu.memory_total // _MIB,
                "computeMode": _COMPUTE_MODES.get(gpu.compute_mode, str(gpu.compute_mode)),
                "mig": mig,
                "instances": [
                    f"{gpu.profiles[gi.profile].name.decode().removeprefix('MIG ')}@{gi.start}" for gi in in_use(gpu.gi)
                ],
                "timeSlice": _TIME_SLICES[gpu.time_slice] if gpu.time_slice_supported else "N/A",
                "processes": [pid for pid, _ in processes],
                "faults": _faults(state, index),
            }
        )
    return rows


def _faults(state: SimState, index: int) -> list[str]:
    gpu = state.gpus[index]
    words = ["lost"] * bool(gpu.lost) + ["absent"] * (not gpu.present)
    if gpu.recovery_action:
        words.append(f"recovery action {gpu.recovery_action}")
    words += ["rows to be replaced"] * bool(gpu.remap_pending) + ["no rows left"] * bool(gpu.remap_failure)
    for slot in in_use(state.faults):
        if slot.builtin or slot.gpu not in (-1, index):
            continue
        effects = [f"code {slot.code}"] * bool(slot.code) + [f"{slot.delay_ms} ms"] * bool(slot.delay_ms)
        effects += ["blocked"] * bool(slot.block) + [f"{slot.remaining} times"] * (slot.remaining >= 0)
        words.append(f"{slot.call.decode()}: {', '.join(effects)}")
    return words


def _show(options: argparse.Namespace) -> None:
    node = SimulatedNode(options.root)
    with node.state() as state:
        rows = _rows(state, node.state_path)
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
        "lost": lambda: node.lose_gpu(_one_gpu(options), xid=options.xid),
        "returned": lambda: node.return_gpu(_one_gpu(options)),
        "unbound": lambda: node.unbind_gpu(_one_gpu(options)),
        "bound": lambda: node.bind_gpu(_one_gpu(options)),
        "at": lambda: node.bind_gpu(_one_gpu(options), options.at),
        "driver_reloaded": node.reload_driver,
        "remapping": lambda: node.set_remapping(
            _one_gpu(options), pending=options.remapping == "pending", failure=options.remapping == "failure"
        ),
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
    if options.fabric_health is not None:
        node.set_fabric_health(_one_gpu(options), options.fabric_health)
        done = True
    if options.xid is not None and not options.lost:
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


_COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "create": _create,
    "profiles": _profiles,
    "show": _show,
    "inject": _inject,
    "clear": _clear,
    "calls": _calls,
    "destroy": _destroy,
}


if __name__ == "__main__":
    sys.exit(main())
