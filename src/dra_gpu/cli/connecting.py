"""How commands find their cluster: the options that all have, and the kubeconfig that is taken without them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])


def connection_options(function: F) -> F:
    """Add the options by which a command finds its cluster: arguments `kubeconfig` and `context`."""
    kubeconfig = click.option(
        "--kubeconfig",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="How to reach the cluster. [default: the first file of $KUBECONFIG that exists, or ~/.kube/config]",
    )
    context = click.option(
        "--context", metavar="NAME", default=None, help="Context of the kubeconfig. [default: the current one]"
    )
    return kubeconfig(context(function))


def kubeconfig_of(named: Path | None) -> Path:
    """Return the file to use; of several in the environment one, for they are not merged as kubectl does."""
    if named is not None:
        return named
    listed = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    candidates = listed or [Path.home() / ".kube/config"]
    return next((path for path in candidates if path.exists()), candidates[0])
