"""The command `dra-gpu`: one word chooses the process, and only that process' modules are imported."""

import sys

from dra_gpu import __version__

_USAGE = """\
usage: dra-gpu node [leave] --vendor nvidia [options]
       dra-gpu mps [options]
       dra-gpu controller [options]
       dra-gpu webhook [options]
       dra-gpu uninstall-check [options]

The GPU driver's processes: two on a node, two for the cluster.

  node        publish this node's GPUs and prepare claims on them (dra-gpu node --help)
              node leave: publish nothing, give back what ends, and end when nothing of the driver is on this node
  mps         run the MPS daemons of this node's shared GPUs (dra-gpu mps --help)
  controller  have waiting pods tried again, sweep up after lost nodes (dra-gpu controller --help)
  webhook     check claims and device classes when they are created (dra-gpu webhook --help)
  uninstall-check
              fail while claims have devices of the driver: the chart does so before an uninstall
              (dra-gpu uninstall-check --help)
  --version   print the version
"""


def _hide_rich() -> None:
    """Keep structlog from importing rich where it is installed, for coloured tracebacks that no process here writes.

    It would be a fifth of a start's time. None is how Python is told that a module is not there.
    """
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]  # the declared type does not know of that


def main() -> int:
    """Run the process that the first argument names; returns its exit status."""
    _hide_rich()
    match sys.argv[1:]:
        case ["node", *arguments]:
            from dra_gpu.node.app import main as run_node  # each command pays only for its own imports

            return run_node(arguments)
        case ["mps", "serve", *arguments]:
            from dra_gpu.mps.app import main as serve_mps  # what the supervisor starts

            return serve_mps(arguments)
        case ["mps", *arguments]:
            from dra_gpu.mps.supervisor import main as supervise_mps

            return supervise_mps(arguments)
        case ["controller", *arguments]:
            from dra_gpu.controller.app import main as run_controller

            return run_controller(arguments)
        case ["webhook", *arguments]:
            from dra_gpu.webhook.app import main as run_webhook

            return run_webhook(arguments)
        case ["uninstall-check", *arguments]:
            from dra_gpu.controller.uninstall_check import main as check_uninstall

            return check_uninstall(arguments)
        case ["--version" | "version"]:
            sys.stdout.write(f"dra-gpu {__version__}\n")
            return 0
        case ["--help" | "-h" | "help"]:
            sys.stdout.write(_USAGE)
            return 0
        case [unknown, *_]:
            sys.stderr.write(
                f"dra-gpu: {unknown!r} is no command: write node, mps, controller, webhook or uninstall-check "
                "(dra-gpu --help)\n"
            )
            return 2
        case _:
            sys.stderr.write(_USAGE)
            return 2


if __name__ == "__main__":
    sys.exit(main())
