"""Measure any DRA plugin over its socket, as its kubelet would see it.

    D=/var/lib/kubelet/plugins/gpu.nvidia.com
    python -m tests.bench.client --socket $D/dra.sock --state-dir $D --driver gpu.nvidia.com --pool NODE \
        --devices gpu-0,gpu-1 --monitors gpu-0-monitor --api http://127.0.0.1:8001

The plugin must serve DRA v1 and read its claims from the API server given: the claims are made there. With `--start`
the plugin is started here, and the time until its socket listens and its memory are measured as well.
"""

import argparse
import asyncio
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from tests.bench.cluster import Api, ApiError, Claims
from tests.bench.figures import Figure, Row, as_json, over_runs, table
from tests.bench.plugin import CallFailedError, Plugin, register, wait_for_socket
from tests.bench.scenarios import NAMES, Setup, run

START_SECONDS = 30.0
STOP_SECONDS = 30.0
SETTLE_SECONDS = 2.0  # devices are looked at and published after the socket listens
RSS_AIM = 55.0  # MB
START_AIM = 0.7  # s
TIME_SLICING = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenarios; 1 when a target was missed, 2 when the plugin failed a call."""
    options = parse(arguments)
    try:
        rows, notes = measure(options)
    except (CallFailedError, ApiError, OSError) as error:
        say(str(error))
        return 2
    show(rows, notes, options.output)
    return int(any(row.verdict == "MISS" for row in rows))


def measure(options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """All runs, merged, and what there is to note about them.

    Raises:
        CallFailedError: the plugin refused a call or did not start.
        ApiError: the API server refused a request.
        OSError: a socket or file is not there.
    """
    runs, notes = asyncio.run(_measure(options))
    return over_runs(runs), notes


def show(rows: Sequence[Row], notes: Sequence[str], output: str) -> None:
    """Write the figures to standard output."""
    if output == "json":
        sys.stdout.write(as_json(rows, notes) + "\n")
    else:
        sys.stdout.write("\n".join([table(rows), *(f"note: {note}" for note in notes)]) + "\n")


async def _measure(options: argparse.Namespace) -> tuple[list[list[Figure]], list[str]]:
    runs: list[list[Figure]] = []
    notes: dict[str, None] = {}
    for number in range(options.runs):
        started: list[Figure] = []
        process = await _start(options, started) if options.start else None
        try:
            if options.registration:
                await wait_for_socket(options.registration, START_SECONDS)
                await register(options.registration)
            plugin = Plugin(options.socket)
            with closing(plugin), closing(Api(options.api, options.token_file, options.ca_file)) as api:
                setup = _setup(options, plugin, api)
                figures = [] if options.start_only else await run(setup)
            pid = process.pid if process else options.pid
            if options.start_only:
                await asyncio.sleep(SETTLE_SECONDS)
            if pid:
                figures.append(_rss("RSS, settled" if options.start_only else "RSS after the load", pid))
        finally:
            if process:
                process.terminate()
                process.wait(STOP_SECONDS)
        runs.append(started + figures)
        notes.update(dict.fromkeys(setup.notes))
        say(f"run {number + 1} of {options.runs} done")
    return runs, list(notes)


async def _start(options: argparse.Namespace, figures: list[Figure]) -> subprocess.Popen[bytes]:
    before = time.perf_counter()
    with options.log.open("ab") if options.log else nullcontext() as log:
        process = subprocess.Popen(shlex.split(options.start), stdout=log, stderr=log)
    try:
        await wait_for_socket(options.socket, START_SECONDS)
    except TimeoutError as error:
        process.kill()
        raise CallFailedError(
            f"`{options.start}` did not listen at {options.socket} in {START_SECONDS:.0f} s"
        ) from error
    figures.append(
        Figure("start -> socket", time.perf_counter() - before, "s", limit=START_AIM, target=f"{START_AIM} (aim)")
    )
    return process


def _rss(key: str, pid: int) -> Figure:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return Figure(key, int(line.split()[1]) / 1024, "MB", limit=RSS_AIM, target=f"{RSS_AIM:.0f} (aim)")
    raise CallFailedError(f"process {pid} has no memory: it has ended")


def _setup(options: argparse.Namespace, plugin: Plugin, api: Api) -> Setup:
    @contextmanager
    def slow() -> Iterator[None]:
        _command(options.slow_on)
        try:
            yield
        finally:
            _command(options.slow_off)

    return Setup(
        plugin=plugin,
        claims=Claims(api, options.driver, options.pool, options.namespace),
        devices=options.devices,
        monitors=options.monitors,
        shared=options.shared,
        pods=options.pods,
        mps_program=options.mps_program,
        partitions=options.partitions,
        nvml=options.nvml,
        spare_gpu=options.spare_gpu,
        state_dir=options.state_dir,
        config=json.loads(options.config.read_text()) if options.config else TIME_SLICING,
        slow=slow if options.slow_on and options.slow_off else None,
        claims_total=options.claims,
        at_once=options.at_once,
        samples=options.samples,
        held=options.held,
        only=options.only,
    )


def _command(line: str) -> None:
    subprocess.run(shlex.split(line), check=True, timeout=30, stdout=subprocess.DEVNULL)


def say(text: str) -> None:
    """Write a line about progress or failure to standard error."""
    sys.stderr.write(f"bench: {text}\n")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tests.bench.client", description="Measure any DRA plugin over its socket.")
    parser.add_argument("--socket", type=Path, required=True, help="the plugin's DRA socket")
    parser.add_argument("--registration", type=Path, help="its registration socket, to register it first")
    parser.add_argument("--driver", required=True, help="name of the DRA driver")
    parser.add_argument("--pool", required=True, help="pool of its devices, usually the node's name")
    parser.add_argument("--devices", type=_names, required=True, help="devices that one claim holds alone, a,b,c")
    parser.add_argument("--monitors", type=_names, default=[], help="devices that any number of claims may hold")
    parser.add_argument("--shared", type=_names, default=[], help="devices of which claims may hold shares, a GPU each")
    parser.add_argument("--pods", type=_names, default=[], help="UIDs of pods on the node, for which the shares are")
    parser.add_argument("--partitions", type=_names, default=[], help="two partitions of one slice of one GPU")
    parser.add_argument("--nvml", type=Path, help="libnvidia-ml.so.1, to measure what a partition costs without us")
    parser.add_argument("--spare-gpu", type=int, default=0, help="index of a GPU that nobody uses, to measure that on")
    parser.add_argument("--mps-program", type=Path, help="nvidia-cuda-mps-control, to measure what starting it costs")
    parser.add_argument("--api", required=True, help="API server that the plugin reads, http(s)://host:port")
    parser.add_argument("--token-file", type=Path, help="bearer token for it")
    parser.add_argument("--ca-file", type=Path, help="CA of its certificate")
    parser.add_argument("--namespace", default="default", help="where the claims are made")
    parser.add_argument("--state-dir", type=Path, required=True, help="a directory in the plugin's file system")
    parser.add_argument("--config", type=Path, help="opaque parameters that make the plugin call its hardware (JSON)")
    parser.add_argument("--slow-on", help="command that makes each hardware call 20 ms slower")
    parser.add_argument("--slow-off", help="command that ends it")
    parser.add_argument("--start", help="command that starts the plugin, anew for each run")
    parser.add_argument("--start-only", action="store_true", help="measure the start and nothing else")
    parser.add_argument("--log", type=Path, help="where that plugin's output goes")
    parser.add_argument("--pid", type=int, help="process of the running plugin, for its memory")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--claims", type=int, default=160, help="claims of the parallel scenarios")
    parser.add_argument("--at-once", type=int, default=32, help="how many of them at the same time")
    parser.add_argument("--samples", type=int, default=160, help="calls behind each percentile")
    parser.add_argument("--held", type=_pair, default=(10, 1000), help="held claims to compare, few,many")
    parser.add_argument("--only", type=_names, default=NAMES, help=f"scenarios to run, of {','.join(NAMES)}")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser.parse_args(arguments)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _pair(text: str) -> tuple[int, int]:
    few, many = text.split(",")
    return int(few), int(many)


if __name__ == "__main__":
    sys.exit(main())
