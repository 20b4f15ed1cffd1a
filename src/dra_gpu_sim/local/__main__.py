"""`python -m dra_gpu_sim.local demo`: the local mode from the command line."""

import argparse
import asyncio
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from dra_gpu_sim.build import BuildError
from dra_gpu_sim.local import demo


def main() -> None:
    """Parse the arguments and run what they name."""
    parser = argparse.ArgumentParser(prog="dra_gpu_sim.local", description="The driver on simulated GPUs, no cluster.")
    commands = parser.add_subparsers(dest="command", required=True)
    demonstration = commands.add_parser("demo", help="four jobs share one H100")
    demonstration.add_argument("--output", type=Path, default=Path("demo.json"), help="the result as JSON")
    output: Path = parser.parse_args().output
    started = time.monotonic()
    try:
        shown = asyncio.run(demo.run())
    except (BuildError, demo.DemoError) as error:
        sys.exit(f"demo: {error}")
    seconds = round(time.monotonic() - started, 1)
    output.write_text(json.dumps({"seconds": seconds, **asdict(shown)}, indent=2) + "\n")
    print(f"The same as JSON: {output}. Took {seconds} s.\n\n{demo.NEXT}")


if __name__ == "__main__":
    main()
