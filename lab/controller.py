"""The controller of a lab, as a host process with a token of its own account: what the Deployment's pod is."""

import signal
import sys
from pathlib import Path

from lab.api import Api, path_of, wait_until
from lab.identity import NAMESPACE
from lab.kubeconfig import write_kubeconfig
from lab.layout import Layout
from lab.processes import Process

ACCOUNT = "dra-gpu-controller"
_TOKEN_SECONDS = 24 * 3600
_ACCOUNT_WITHIN_SECONDS = 60.0
_STOPPED_WITHIN_SECONDS = 30.0


def controller_process(layout: Layout) -> Process:
    """Return its record and log."""
    return layout.process("driver-controller")


def start_controller(layout: Layout, api: Api) -> None:
    """Start it, unless it runs. Its rights come from `deploy/rbac/controller.yaml`, which must have been applied.

    Raises:
        TimeoutError: its account does not come to be.
        LabError: it does not even begin.
    """
    process = controller_process(layout)
    if process.running() is not None:
        return
    account = path_of("v1", "serviceaccounts", ACCOUNT, namespace=NAMESPACE)
    wait_until(f"ServiceAccount {NAMESPACE}/{ACCOUNT}", lambda: api.exists(account), _ACCOUNT_WITHIN_SECONDS)
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_SECONDS},
    }
    token = api.create(f"{account}/token", request)["status"]["token"]
    kubeconfig = layout.state / "driver-controller.kubeconfig"
    write_kubeconfig(kubeconfig, server=f"https://{api.host}:{api.port}", ca=layout.ca, token=token)
    program = str(Path(sys.executable).parent / "dra-gpu")
    process.start([program, "controller", f"--kubeconfig={kubeconfig}"])


def stop_controller(layout: Layout) -> None:
    """End it with SIGTERM, if it runs."""
    controller_process(layout).stop(signal.SIGTERM, seconds=_STOPPED_WITHIN_SECONDS)
