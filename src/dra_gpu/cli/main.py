"""The command `kubectl-gpu`, which kubectl runs as `kubectl gpu`."""

from pathlib import Path

import click

from dra_gpu import __version__
from dra_gpu.cli import resize_command, service_commands, top_command
from dra_gpu.cli.connecting import connection_options, kubeconfig_of


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kubectl-gpu")
def main() -> None:
    """See the GPUs of a cluster and who holds them, move capacity between claims, take a GPU out and give it back.

    kubectl runs this program as `kubectl gpu`.
    """


@main.command("list")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml"]),
    default="table",
    show_default=True,
    help="table and wide (adds isolation, views, NVLink group, NUMA node, PCI address and UUID) for people, "
    "json and yaml for machines.",
)
@click.option("--node", metavar="NAME", default="", help="Only the GPUs of this node.")
@connection_options
def list_gpus(output: str, node: str, kubeconfig: Path | None, context: str | None) -> None:
    """List every published GPU, what is free of it, and the claims that hold it.

    FREE is what further shares can ask for: a percentage of the SMs, and memory. WHAT ENFORCES IT is what limits a
    claim to its part, as its node says in the claim's status; `accounting` and `cooperative` are limits that a
    container can lift.
    """
    import asyncio  # the client and its event loop cost 60 ms that --help need not pay

    from dra_gpu.apiserver.connection import ConnectionConfigError
    from dra_gpu.apiserver.errors import ApiError
    from dra_gpu.cli import listing, listing_output, refusals

    try:
        gpus, unreadable = asyncio.run(listing.read(kubeconfig_of(kubeconfig), context, node))
    except (ConnectionConfigError, ApiError) as error:
        raise click.ClickException(refusals.told(error)) from error
    for problem in unreadable:
        click.echo(f"Warning: left out, so that more may be held than is shown: {problem}", err=True)
    form = listing_output.Format(output)
    if not gpus and form in (listing_output.Format.TABLE, listing_output.Format.WIDE):
        click.echo(listing_output.nothing_found(node), err=True)
        return
    click.echo(listing_output.render(gpus, form))


service_commands.register(main)
main.add_command(top_command.top)
main.add_command(resize_command.resize)


@main.command("validate")
@click.option(
    "-f",
    "--filename",
    "filenames",
    multiple=True,
    required=True,
    help="A file, a directory, or - for standard input; may be given several times.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="For people or machines.")
def validate_manifests(filenames: tuple[str, ...], output: str) -> None:
    """Check manifests for this driver, without a cluster.

    Looks at ResourceClaims, ResourceClaimTemplates, DeviceClasses, ComputeDomains and opaque configs; exits with 1 if
    one of them cannot work.
    """
    from dra_gpu.cli import manifests, validate

    try:
        summary = validate.check(manifests.read(filenames))
    except manifests.ManifestError as error:
        raise click.ClickException(str(error)) from error
    click.echo(validate.as_json(summary) if output == "json" else validate.as_table(summary))
    if summary.errors:
        raise SystemExit(1)
