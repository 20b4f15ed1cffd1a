"""`kubectl gpu cordon`, `drain`, `uncordon` and `reset` as commands: arguments, exit status and what is printed."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from dra_gpu.cli.connecting import connection_options, kubeconfig_of

if TYPE_CHECKING:
    from dra_gpu.cli.cordoning import Service, ServiceResult

F = TypeVar("F", bound=Callable[..., object])
_MINUTES = "Seconds that pods may take to end."


def _of_one_gpu(function: F) -> F:
    """Add what every command about one GPU takes."""
    output = click.option(
        "-o", "--output", type=click.Choice(["text", "json"]), default="text", help="For people or machines."
    )
    return click.argument("node")(click.argument("gpu")(output(connection_options(function))))


@click.command("cordon")
@_of_one_gpu
def cordon(node: str, gpu: str, output: str, kubeconfig: Path | None, context: str | None) -> None:
    """Let no new claim have anything of a GPU; whoever has it keeps it.

    GPU is the name of its device (gpu-0), its UUID or its PCI address. Every device of it but the one that only
    watches gets a DeviceTaintRule with the effect NoSchedule. May be repeated.
    """
    from dra_gpu.cli import cordoning

    _print(_run(node, gpu, kubeconfig, context, cordoning.cordon_gpu), output)


@click.command("drain")
@_of_one_gpu
@click.option("--wait", is_flag=True, help="Wait until no claim has anything of it.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help=_MINUTES)
def drain(
    node: str, gpu: str, output: str, kubeconfig: Path | None, context: str | None, *, wait: bool, timeout: float
) -> None:
    """Cordon a GPU and evict the pods that have anything of it; says which.

    GPU is the name of its device (gpu-0), its UUID or its PCI address. The effect NoExecute ends pods with their grace
    period and asks no PodDisruptionBudget; a claim whose tolerations name that effect keeps its pods.
    """
    from dra_gpu.cli import cordoning

    async def work(service: "Service") -> "ServiceResult":
        result = await cordoning.drain_gpu(service)
        if wait and (ending := cordoning.leaving(result.claims)):
            _progress(f"{service.gpu} is drained; waiting for {', '.join(one.shown for one in ending)} to end")
            left = await service.wait_free(cordoning.leaving(result.claims), timeout)
            if left:
                names = ", ".join(one.shown for one in left)
                raise cordoning.ServiceError(f"{service.gpu} is drained, and {names} still has it after {timeout:g} s")
        return result

    _print(_run(node, gpu, kubeconfig, context, work), output)


@click.command("uncordon")
@_of_one_gpu
@click.option(
    "--clear-health",
    is_flag=True,
    help="Call it well, too, although it was sick: what is still wrong is found again. Needs `patch` on nodes.",
)
def uncordon(
    node: str, gpu: str, output: str, kubeconfig: Path | None, context: str | None, *, clear_health: bool
) -> None:
    """Give a cordoned or drained GPU back to the scheduler.

    GPU is the name of its device (gpu-0), its UUID or its PCI address. What the driver itself has tainted, because the
    GPU is sick, stays tainted, unless it is called well.
    """
    from dra_gpu.cli import cordoning

    async def work(service: "Service") -> "ServiceResult":
        return await cordoning.uncordon_gpu(service, well=clear_health)

    _print(_run(node, gpu, kubeconfig, context, work), output)


@click.command("reset")
@_of_one_gpu
@click.option("--force-drain", is_flag=True, help="Delete the pods that have it, also those that tolerate the drain.")
@click.option("--keep-cordoned", is_flag=True, help="Leave it drained afterwards.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help=_MINUTES)
def reset(
    node: str,
    gpu: str,
    output: str,
    kubeconfig: Path | None,
    context: str | None,
    *,
    force_drain: bool,
    keep_cordoned: bool,
    timeout: float,
) -> None:
    """Drain a GPU, wait until no claim has it, reset it, and give it back.

    GPU is the name of its device (gpu-0), its UUID or its PCI address. Its node resets it with NVML closed; refused,
    with pid and command, while a process has the device open. MIG instances are gone afterwards, whoever made them. A
    GPU that could not be reset stays drained.
    """
    from dra_gpu.cli.reset import reset_gpu

    async def work(service: "Service") -> "ServiceResult":
        return await reset_gpu(service, force=force_drain, keep=keep_cordoned, seconds=timeout, tell=_progress)

    _print(_run(node, gpu, kubeconfig, context, work), output)


def register(group: click.Group) -> None:
    """Add the commands to a group."""
    for command in (cordon, drain, uncordon, reset):
        group.add_command(command)


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _run(
    node: str,
    gpu: str,
    kubeconfig: Path | None,
    context: str | None,
    work: Callable[["Service"], Awaitable["ServiceResult"]],
) -> "ServiceResult":
    """Look the GPU up and work on it; whatever goes wrong becomes a line and exit status 1."""
    import asyncio  # as for the other commands: --help need not pay for it

    from dra_gpu.apiserver.client import HttpKubernetesApi
    from dra_gpu.apiserver.connection import ConnectionConfigError, from_kubeconfig
    from dra_gpu.apiserver.errors import ApiError
    from dra_gpu.cli import refusals
    from dra_gpu.cli.cordoning import Service, ServiceError
    from dra_gpu.cli.gpu_target import NoSuchGpuError

    async def run() -> "ServiceResult":
        api = HttpKubernetesApi(from_kubeconfig(kubeconfig_of(kubeconfig), context))
        try:
            return await work(await Service.find(api, node, gpu))
        finally:
            api.close()

    try:
        return asyncio.run(run())
    except (ConnectionConfigError, ApiError, ServiceError, NoSuchGpuError) as error:
        raise click.ClickException(refusals.told(error)) from error


def _print(result: "ServiceResult", output: str) -> None:
    from dra_gpu.cli.service_output import as_json, as_text

    click.echo(as_json(result) if output == "json" else as_text(result))
