"""`python -m dra_gpu_sim.local demo`: the local mode from the command line."""

import argparse
import asyncio
from pathlib import Path

from dra_gpu_sim.local import demo


def main() -> None:
    """Parse the arguments and run what they name."""
    parser = argparse.ArgumentParser(prog="dra_gpu_sim.local", description="The driver on simulated GPUs, no cluster.")
    commands = parser.add_subparsers(dest="command", required=True)
    demonstration = commands.add_parser("demo", help="two pods get two of eight H100")
    demonstration.add_argument("--output", type=Path, default=Path("demo.json"), help="the result as JSON")
    asyncio.run(demo.run(parser.parse_args().output))


if __name__ == "__main__":
    main()
