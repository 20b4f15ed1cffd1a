"""`dra-gpu uninstall-check`: fails while claims have devices of ours. The chart runs it before an uninstall.

Claims that somebody has just ended are waited for a moment: Kubernetes frees a claim shortly after its pod. It writes
nothing, and needs no right but to list claims.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_gpu.apiserver import errors
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.clock import Clock, SystemClock
from dra_gpu.apiserver.connection import ConnectionConfigError, from_kubeconfig, in_cluster
from dra_gpu.apiserver.kubernetes_api import KubernetesApi
from dra_gpu.apiserver.resources import RESOURCE_CLAIMS
from dra_gpu.controller.devices_in_use import Release, Use, refusal, uses
from dra_gpu.controller.loops import DRIVERS
from dra_gpu.flags import Flags, new_parser, seconds

WAIT_SECONDS = 10.0
LOOK_SECONDS = 1.0
_LIST_SECONDS = 30.0


class UnknownError(Exception):
    """It cannot be told whether claims have devices of ours; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is checked, for whom.

    Attributes:
        kubeconfig: how to reach the API server; None inside a pod.
        wait: seconds for which claims that are being given back are waited for.
        release: which is to be uninstalled.
    """

    kubeconfig: Path | None
    wait: float
    release: Release


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the settings.

    Exits the process with a message when one is wrong, as argparse does.
    """
    parser = new_parser(
        "dra-gpu uninstall-check",
        "dra-gpu uninstall-check [options]",
        "Fails while claims have devices of this driver, and names them. The chart runs it before an uninstall.",
    )
    add = Flags(parser, environment).add
    add("--kubeconfig", "KUBECONFIG", None, "how to reach the API server; not needed inside a pod", type=Path)
    add("--wait", None, WAIT_SECONDS, "seconds for which claims that are being given back are waited for", type=seconds)
    add("--release", None, "", "name of the release of Helm, for the commands that it prints")
    add("--release-namespace", None, "", "its namespace")
    add("--release-revision", None, "", "its newest revision")
    found = parser.parse_args(arguments)
    release = Release(found.release, found.release_namespace, found.release_revision)
    return Settings(found.kubeconfig, found.wait, release)


def main(arguments: Sequence[str]) -> int:
    """Check, and print the outcome; returns 0 when nothing of the driver is in use."""
    chosen = parse(arguments, os.environ)
    try:
        left = asyncio.run(_check(chosen))
    except UnknownError as error:
        sys.stdout.write(f"It cannot be told whether claims have devices of the driver: {error}\n")
        return 1
    if left:
        sys.stdout.write(refusal(left, chosen.release))
        return 1
    sys.stdout.write("No claim has a device of the driver.\n")
    return 0


async def still_in_use(api: KubernetesApi, wait: float, clock: Clock) -> list[Use]:
    """Return who still has devices of ours after `wait` seconds, empty as soon as nobody has any.

    Raises:
        UnknownError: the last look failed.
    """
    until = clock.now() + wait
    while True:
        try:
            found = await _look(api)
        except errors.ApiError as error:
            if clock.now() >= until:
                raise UnknownError(str(error)) from error
        else:
            if not found or clock.now() >= until:
                return found
        await clock.sleep(LOOK_SECONDS)


async def _look(api: KubernetesApi) -> list[Use]:
    listed = await api.list(RESOURCE_CLAIMS, deadline=_LIST_SECONDS)
    if listed.undecodable:
        raise UnknownError(f"claims that cannot be read: {', '.join(listed.undecodable)}")
    return uses(listed.items, DRIVERS)


async def _check(chosen: Settings) -> list[Use]:
    try:
        connection = from_kubeconfig(chosen.kubeconfig) if chosen.kubeconfig is not None else in_cluster()
        api = HttpKubernetesApi(connection)
    except ConnectionConfigError as error:
        raise UnknownError(str(error)) from error
    try:
        return await still_in_use(api, chosen.wait, SystemClock())
    finally:
        api.close()
