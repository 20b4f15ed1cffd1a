"""`kubectl gpu top` as a command: arguments, exit status, and how often it looks."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_gpu.cli.connecting import connection_options, kubeconfig_of

if TYPE_CHECKING:
    from dra_gpu.cli.top import Seen

INTERVAL = 10.0  # seconds; the node plugin looks at its GPUs no more often (`node.usage_meter.LOOK_SECONDS`)


@click.command("top")
@click.argument("node", default="")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="For people or machines.")
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    default="",
    help="Where the driver is installed; with it no right to look for its pods elsewhere is needed.",
)
@click.option("-w", "--watch", is_flag=True, help="Look again and again, until interrupted.")
@click.option(
    "--interval", type=click.FloatRange(min=1.0), default=INTERVAL, show_default=True, help="Seconds between two looks."
)
@connection_options
def top(
    node: str,
    output: str,
    namespace: str,
    kubeconfig: Path | None,
    context: str | None,
    *,
    watch: bool,
    interval: float,
) -> None:
    """Show what claims use of their GPUs, beside what they may.

    SMS is the share of the time in which a claim kept SMs of the GPU busy, of the percentage that it may have; MEMORY
    is device memory. The figures are those of the node plugins' metrics: at most ten seconds old, and at the first
    look there is no SM figure yet. Needs `get` on `pods/proxy` in the driver's namespace.
    """
    import time

    _show(_look(node, namespace, kubeconfig, context), node, output, clear=watch)
    while watch:
        time.sleep(interval)
        try:
            _show(_look(node, namespace, kubeconfig, context), node, output, clear=True)
        except click.ClickException as error:  # an API server that is away for a moment ends no watch
            click.echo(f"Warning: {error.message}", err=True)


def _look(node: str, namespace: str, kubeconfig: Path | None, context: str | None) -> "Seen":
    import asyncio

    from dra_gpu.apiserver.client import HttpKubernetesApi
    from dra_gpu.apiserver.connection import ConnectionConfigError, from_kubeconfig
    from dra_gpu.apiserver.errors import ApiError
    from dra_gpu.cli import refusals
    from dra_gpu.cli.top import see

    async def run() -> "Seen":
        api = HttpKubernetesApi(from_kubeconfig(kubeconfig_of(kubeconfig), context))
        try:
            return await see(api, node, namespace)
        finally:
            api.close()

    try:
        return asyncio.run(run())
    except (ConnectionConfigError, ApiError) as error:
        raise click.ClickException(refusals.told(error)) from error


def _show(seen: "Seen", node: str, output: str, *, clear: bool) -> None:
    from dra_gpu.cli import top_output

    if clear and output == "table":
        click.clear()  # does nothing where nobody looks at a terminal
    for problem in seen.problems:
        click.echo(f"Warning: what is used cannot be told: {problem}", err=True)
    if output == "json":
        click.echo(top_output.as_json(seen))
    elif nothing := top_output.nothing_found(seen.gpus, node):
        click.echo(nothing, err=True)
    else:
        click.echo(top_output.as_table(seen))
