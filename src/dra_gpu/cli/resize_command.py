"""`kubectl gpu resize` as a command: arguments, exit status and what is printed."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_gpu.cli.connecting import connection_options, kubeconfig_of

if TYPE_CHECKING:
    from dra_gpu.api.claim_resize import ClaimResize
    from dra_gpu.cli.resize import Order

_WAIT_SECONDS = "300"
_SLICES = ["Default", "Short", "Medium", "Long"]
#: Where in a ClaimResize's spec an option belongs.
_FIELDS = {
    "compute": ("capacity", "computePercent"),
    "memory": ("capacity", "memory"),
    "clients": ("capacity", "clients"),
    "mps_threads": ("mps", "activeThreadPercentage"),
    "mps_memory": ("mps", "pinnedDeviceMemoryLimit"),
}


@click.command("resize")
@click.argument("what", metavar="CLAIM|POD")
@click.option("-n", "--namespace", metavar="NAME", default="", help="Of the claim. [default: the context's]")
@click.option("--request", metavar="NAME", help="Which request of the claim; needed where it has several devices.")
@click.option("--compute", metavar="PERCENT", help="Percent of the SMs that a share should have, such as 40%.")
@click.option("--memory", metavar="QUANTITY", help="Memory that a share should have, such as 20Gi.")
@click.option("--clients", metavar="N", type=click.IntRange(min=1), help="Processes that a share may run at a time.")
@click.option("--time-slice", type=click.Choice(_SLICES), help="Of a whole GPU that is shared by time slices.")
@click.option("--mps-threads", metavar="PERCENT", help="Of each process of a whole GPU that is shared by MPS.")
@click.option("--mps-memory", metavar="QUANTITY", help="The same: device memory of each process.")
@click.option("--reset", is_flag=True, help="Give it back what it was allocated.")
@click.option(
    "--wait",
    metavar="SECONDS",
    is_flag=False,
    flag_value=_WAIT_SECONDS,
    type=click.FloatRange(min=0),
    help=f"Wait until it is in force: --wait=60 for so long at most, --wait alone for {_WAIT_SECONDS} s.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="For people or machines.")
@connection_options
def resize(
    what: str,
    namespace: str,
    output: str,
    kubeconfig: Path | None,
    context: str | None,
    *,
    request: str | None,
    wait: float | None,
    reset: bool,
    **wanted: str | int | None,
) -> None:
    """Change how much of its GPU a claim has, while its pods run.

    Of a POD its claim is meant. Less takes effect as soon as no process can have more, and others can have the rest
    then; more, at most what the claim was allocated unless the operator allows more, is granted by the scheduler. What
    is not named stays as it is. The object behind it is a ClaimResize with the name of the claim.
    """
    from dra_gpu.cli.resize import Order

    changes = _changes(wanted)
    if bool(changes) == reset:
        raise click.UsageError("say what is wanted (--compute, --memory, ...), or --reset")
    if output == "json" and reset:
        raise click.UsageError("--reset leaves nothing to print as JSON")
    _run(Order(namespace, what, request, changes, reset), wait, output, kubeconfig, context)


def _changes(wanted: Mapping[str, str | int | None]) -> dict[str, object]:
    """Return the fields of the spec that options name."""
    changes: dict[str, dict[str, object]] = {}
    for option, (part, field) in _FIELDS.items():
        value = wanted[option]
        if value is not None:
            percent = field in ("computePercent", "activeThreadPercentage")
            changes.setdefault(part, {})[field] = _percent(f"--{option.replace('_', '-')}", value) if percent else value
    time_slice = wanted["time_slice"]
    return changes | ({"timeSlice": time_slice} if time_slice is not None else {})


def _percent(option: str, text: str | int) -> int:
    number = str(text).strip().removesuffix("%").strip()
    if not number.isdecimal() or len(number) > 3 or not 1 <= int(number) <= 100:  # noqa: PLR2004 - of a hundred
        raise click.BadParameter(f"{text!r} is no whole percentage from 1 to 100", param_hint=option)
    return int(number)


def _run(order: "Order", wait: float | None, output: str, kubeconfig: Path | None, context: str | None) -> None:
    import asyncio  # as for the other commands: --help need not pay for it
    from dataclasses import replace

    from dra_gpu.apiserver.client import HttpKubernetesApi
    from dra_gpu.apiserver.connection import ConnectionConfigError, from_kubeconfig
    from dra_gpu.apiserver.errors import ApiError
    from dra_gpu.cli import refusals
    from dra_gpu.cli.resize import ResizeError, Resizing

    async def run() -> "ClaimResize | None":
        connection = from_kubeconfig(kubeconfig_of(kubeconfig), context)
        api = HttpKubernetesApi(connection)
        try:
            placed = replace(order, namespace=order.namespace or connection.namespace or "default")
            # What is for machines stands alone on standard output.
            resizing = Resizing(api, placed, lambda line: click.echo(line, err=output == "json"))
            begun = await resizing.begin()
            return begun if wait is None or begun is None else await resizing.follow(begun, wait)
        finally:
            api.close()

    try:
        found = asyncio.run(run())
    except (ConnectionConfigError, ApiError, ResizeError) as error:
        raise click.ClickException(refusals.told(error)) from error
    if output == "json" and found is not None:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
