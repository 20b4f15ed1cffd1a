"""The command `kubectl-gpu`, which kubectl runs as `kubectl gpu`."""

import os
from pathlib import Path

import click

from dra_gpu import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kubectl-gpu")
def main() -> None:
    """See the GPUs of a cluster and who holds them."""


@main.command("list")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml"]),
    default="table",
    help="For people or machines.",
)
@click.option("--node", default="", help="Only the GPUs of this node.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Default: $KUBECONFIG, then ~/.kube/config.")
@click.option("--context", default=None, help="Context of the kubeconfig; default: the current one.")
def list_gpus(output: str, node: str, kubeconfig: Path | None, context: str | None) -> None:
    """List every published GPU, its views, and the claims that hold it."""
    import asyncio  # the client and its event loop cost 60 ms that --help need not pay

    from dra_gpu.apiserver.connection import ConnectionConfigError
    from dra_gpu.apiserver.errors import ApiError
    from dra_gpu.cli import listing, listing_output

    path = kubeconfig or Path(os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or Path.home() / ".kube/config")
    try:
        gpus = asyncio.run(listing.read(path, context, node))
    except (ConnectionConfigError, ApiError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(listing_output.render(gpus, listing_output.Format(output)))
