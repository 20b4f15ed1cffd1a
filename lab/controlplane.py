"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler: their command lines, default feature gates."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from lab import packages
from lab.api import Api
from lab.errors import LabError
from lab.kubeconfig import write_kubeconfig
from lab.layout import Layout
from lab.processes import Process
from lab.settings import Settings

_HOST = "127.0.0.1"
_READY_WITHIN_SECONDS = 180.0
_HTTPS = 443
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
#: Hands pods' connections on to the API server.
SERVICE = "kubernetes-service"


def server_url(settings: Settings) -> str:
    """Return the API server's address."""
    return f"https://{_HOST}:{settings.ports.apiserver}"


def admin_api(layout: Layout, settings: Settings) -> Api:
    """Return a client with all rights."""
    return Api(_HOST, settings.ports.apiserver, layout.ca, settings.admin_token)


def prepare(layout: Layout, settings: Settings) -> None:
    """Write keys, tokens and the administrator's kubeconfig."""
    control = layout.control
    control.mkdir(parents=True, exist_ok=True)
    openssl = packages.require("openssl")
    key = control / "serviceaccount.key"
    _run(openssl, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(key))
    _run(openssl, "pkey", "-in", str(key), "-pubout", "-out", str(control / "serviceaccount.pub"))
    lines = [f"{settings.admin_token},admin,admin,system:masters"]
    # A kubelet is who the node authorizer and NodeRestriction take it for by this name and group.
    lines += [
        f"{token},system:node:{node.name},{node.name},system:nodes"
        for node, token in zip(settings.all_nodes(layout), settings.node_tokens, strict=True)
    ]
    tokens = control / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text("\n".join(lines) + "\n")
    write_kubeconfig(layout.kubeconfig, server=server_url(settings), ca=layout.ca, token=settings.admin_token)


def start_etcd(layout: Layout, settings: Settings, programs: Path) -> Process:
    """Start etcd; what it holds is not worth an fsync."""
    ports = settings.ports
    process = layout.process("etcd")
    peer = f"http://{_HOST}:{ports.etcd_peer}"
    client = f"http://{_HOST}:{ports.etcd}"
    process.start(
        [
            programs / "etcd",
            f"--data-dir={layout.control / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
    )
    _wait(process, lambda: _answers(f"{client}/health"))
    return process


def start_apiserver(layout: Layout, settings: Settings, programs: Path) -> Process:
    """Start the API server and wait until it is ready; at its first start it makes its own certificate."""
    control = layout.control
    process = layout.process("kube-apiserver")
    process.start(
        [
            programs / "kube-apiserver",
            f"--etcd-servers=http://{_HOST}:{settings.ports.etcd}",
            f"--bind-address={_HOST}",
            # Left out, the server looks for a default route, which a machine without a network has not.
            f"--advertise-address={_HOST}",
            f"--secure-port={settings.ports.apiserver}",
            f"--cert-dir={layout.ca.parent}",
            f"--token-auth-file={control / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={control / 'serviceaccount.pub'}",
            f"--service-account-signing-key-file={control / 'serviceaccount.key'}",
            f"--service-cluster-ip-range={layout.services}",
            # Nobody routes Services here: the server calls the pods behind one (a webhook's) itself.
            "--enable-aggregator-routing=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            # Without it `kubectl logs` looks the node's name up in DNS.
            "--kubelet-preferred-address-types=InternalIP",
            "--endpoint-reconciler-type=none",
            "--profiling=false",
        ]
    )
    _wait(process, lambda: layout.ca.exists() and admin_api(layout, settings).ready())
    return process


def start_service(layout: Layout, settings: Settings) -> Process:
    """Let pods reach the API server by the address that every pod is given: what kube-proxy does elsewhere."""
    add_address(layout.apiserver_service)
    process = layout.process(SERVICE)
    forward = Path(__file__).with_name("forward.py")
    target = f"{_HOST}:{settings.ports.apiserver}"
    process.start([sys.executable, forward, f"{layout.apiserver_service}:{_HTTPS}", target])
    return process


def add_address(address: str) -> None:
    """Give this machine's loopback device an address."""
    _run("ip", "address", "replace", f"{address}/32", "dev", "lo")


def remove_address(address: str) -> None:
    """Take an address off the loopback device; fine where it is gone already."""
    subprocess.run(
        ["ip", "address", "delete", f"{address}/32", "dev", "lo"], check=False, capture_output=True, timeout=10
    )


def start_controllers(layout: Layout, settings: Settings, programs: Path) -> list[Process]:
    """Start controller manager and scheduler; `wait_for_controllers` waits for them."""
    common = [
        f"--kubeconfig={layout.kubeconfig}",
        f"--authentication-kubeconfig={layout.kubeconfig}",
        f"--authorization-kubeconfig={layout.kubeconfig}",
        f"--bind-address={_HOST}",
        f"--cert-dir={layout.control / 'certs'}",
        "--leader-elect=false",
        "--profiling=false",
    ]
    manager = layout.process("kube-controller-manager")
    manager.start(
        [
            programs / "kube-controller-manager",
            *common,
            f"--secure-port={settings.ports.controller_manager}",
            f"--service-account-private-key-file={layout.control / 'serviceaccount.key'}",
            f"--root-ca-file={layout.ca}",
            "--use-service-account-credentials=true",
            "--controllers=*",
        ]
    )
    scheduler = layout.process("kube-scheduler")
    scheduler.start([programs / "kube-scheduler", *common, f"--secure-port={settings.ports.scheduler}"])
    return [manager, scheduler]


def wait_for_controllers(layout: Layout, settings: Settings) -> None:
    """Wait until the controller manager works: it has made the default namespace's service account."""
    api = admin_api(layout, settings)
    _wait(
        layout.process("kube-controller-manager"),
        lambda: api.exists("/api/v1/namespaces/default/serviceaccounts/default"),
    )


def _wait(process: Process, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _READY_WITHIN_SECONDS
    while not ready():
        if process.running() is None:
            raise LabError(f"{process.name} ended while it started; its log {process.log} ends with:\n{process.tail()}")
        if time.monotonic() > deadline:
            after = f"after {_READY_WITHIN_SECONDS:.0f} s"
            raise LabError(f"{process.name} is not ready {after}; its log {process.log} ends with:\n{process.tail()}")
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _run(*command: object) -> None:
    result = subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True, timeout=30)
    if result.returncode != 0:
        raise LabError(f"{command[0]} failed with {result.returncode}: {result.stderr.strip()}")
