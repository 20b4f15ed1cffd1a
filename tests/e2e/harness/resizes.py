"""ClaimResizes in end-to-end tests: what is wanted, how far it is, and programs in a container that outlives them."""

from collections.abc import Callable
from dataclasses import dataclass

from lab.api import path_of

from dra_gpu_sim import checker
from dra_gpu_sim.checker import Client
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import Json
from tests.e2e.harness.slices import devices_of
from tests.e2e.harness.waiting import PATIENCE, wait_until

_API = "resource.dra-gpu.dev/v1alpha1"
_RESOURCE = "resource.k8s.io/v1"
#: Label of claims and pods that stand in for a growth.
GROWTH = "resource.dra-gpu.dev/claim-resize"
#: A program that does what is written into its pipe, in a container that runs on when it has ended.
_START = (
    "rm -f /tmp/answers /tmp/commands; mkfifo /tmp/commands; "
    "setsid cuda-client 0<>/tmp/commands >/tmp/answers 2>&1 & true"
)


@dataclass(frozen=True)
class Resizes:
    """The ClaimResizes of a namespace."""

    namespace: TestNamespace

    def want(self, claim: str, **capacity: str) -> None:
        """Want so much for a claim, whether or not that was wanted of it before."""
        body: Json = {"apiVersion": _API, "kind": "ClaimResize", "metadata": {"name": claim}}
        body["spec"] = {"capacity": capacity}
        api = self.namespace.api
        if api.exists(self._path(claim)):
            api.patch(self._path(claim), {"spec": body["spec"]})
        else:
            api.create(path_of(_API, "claimresizes", namespace=self.namespace.name), body)

    def forget(self, claim: str) -> None:
        """Delete the resize of a claim, without waiting for what that means."""
        self.namespace.api.delete(self._path(claim))

    def exists(self, claim: str) -> bool:
        """Tell whether there is one for a claim."""
        return self.namespace.api.exists(self._path(claim))

    def status(self, claim: str) -> Json:
        """Return how far it is; nothing as long as nobody has looked at it."""
        found: Json = self.namespace.api.get(self._path(claim)).get("status", {})
        return found

    def node(self, claim: str) -> Json:
        """Return what the node says of it."""
        found: Json = self.status(claim).get("node", {})
        return found

    def wait(self, claim: str, what: str, check: Callable[[Json], bool], seconds: float = PATIENCE) -> Json:
        """Wait until the status is as `check` wants it, and return it; a failure shows what it is."""
        try:
            wait_until(f"resize of {claim}: {what}", lambda: check(self.status(claim)), seconds, every=0.05)
        except TimeoutError as error:
            raise AssertionError(f"{error}; its status is {self.status(claim)}") from error
        return self.status(claim)

    def wait_phase(self, claim: str, phase: str, seconds: float = PATIENCE) -> Json:
        """Wait until a resize has come to a phase with what is wanted now, and return its status."""

        def reached(status: Json) -> bool:
            generation = self.namespace.api.get(self._path(claim))["metadata"]["generation"]
            return bool(status.get("phase") == phase and status.get("observedGeneration") == generation)

        return self.wait(claim, f"phase {phase}", reached, seconds)

    def wait_gone(self, claim: str, seconds: float = PATIENCE) -> None:
        """Wait until nothing of a resize is left: not the object, no growth and no entry in the claim."""
        try:
            wait_until(f"resize of {claim} gone", lambda: not self.exists(claim), seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}; its status is {self.status(claim)}") from error
        wait_until("its growths gone", lambda: not self.growths(), seconds)

    def growths(self) -> list[Json]:
        """Return the claims and pods that stand in for growths."""
        api, namespace = self.namespace.api, self.namespace.name
        claims = api.items(path_of(_RESOURCE, "resourceclaims", namespace=namespace), labelSelector=GROWTH)
        return claims + api.items(path_of("v1", "pods", namespace=namespace), labelSelector=GROWTH)

    def clean(self, seconds: float = PATIENCE) -> None:
        """Delete the pods of the namespace and its resizes, and wait until nothing is held for any of them."""
        api, namespace = self.namespace.api, self.namespace.name
        for plural, group in (("pods", "v1"), ("claimresizes", _API)):
            for one in api.items(path_of(group, plural, namespace=namespace)):
                api.delete(path_of(group, plural, one["metadata"]["name"], namespace=namespace))
        left = path_of(_API, "claimresizes", namespace=namespace)
        wait_until(f"resizes of {namespace} gone", lambda: not api.items(left) and not self.growths(), seconds)

    def _path(self, claim: str) -> str:
        return path_of(_API, "claimresizes", claim, namespace=self.namespace.name)


def published(driver: DriverOnNode, device: str) -> dict[str, str]:
    """Return the capacities that a shared device is published with; empty while its pool is incomplete."""
    found = devices_of(driver.cluster.api, driver.cluster.node.name, view="shared")
    return {name: one["value"] for name, one in found[device]["capacity"].items()} if device in found else {}


@dataclass(frozen=True)
class Program:
    """A program that uses the GPU in a pod's container; it comes and goes, and the container stays."""

    driver: DriverOnNode
    namespace: TestNamespace
    pod: str

    def start(self) -> Client:
        """Start it and wait until it is attached; return what is true of it."""
        self._execute(_START)
        wait_until(f"the program of {self.pod} says something", lambda: bool(self._answers()))
        assert self._answers()[0].startswith("attached"), self._answers()
        return self.truth()

    def tell(self, command: str) -> str:
        """Give it a command, such as `free 40G`; return its answer."""
        before = len(self._answers())
        self._execute(f"echo {command} >/tmp/commands")
        wait_until(f"the program of {self.pod} answers {command}", lambda: len(self._answers()) > before)
        return self._answers()[before]

    def leave(self) -> None:
        """Let it end; returns when it has no GPU any more."""
        self._execute("echo exit >/tmp/commands")
        wait_until(f"the program of {self.pod} has left", lambda: not self._found())

    def truth(self) -> Client:
        """Return what the hardware lets it do."""
        (found,) = self._found()
        return found

    def _found(self) -> list[Client]:
        uid = self.namespace.pod(self.pod)["metadata"]["uid"]
        return [one for one in checker.clients(self.driver.gpus.root) if f"pod{uid}" in one.cgroup]

    def _answers(self) -> list[str]:
        return self._execute("cat /tmp/answers 2>/dev/null || true").splitlines()

    def _execute(self, script: str) -> str:
        at = ("exec", "-n", self.namespace.name, self.pod, "--", "/bin/sh", "-c")
        return self.driver.cluster.kubectl(*at, script)


def starts(namespace: TestNamespace, *pods: str) -> dict[str, Json]:
    """Return of each pod what a restart would change: its UID, its containers' ids, when they started, how often."""
    found = {}
    for name in pods:
        pod = namespace.pod(name)
        found[name] = {"uid": pod["metadata"]["uid"]} | {
            one["name"]: (one["containerID"], one["restartCount"], one["state"]["running"]["startedAt"])
            for one in pod["status"]["containerStatuses"]
        }
    return found
