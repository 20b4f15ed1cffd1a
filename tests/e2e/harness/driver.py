"""The driver on the test node: one simulated machine, and the plugin instances that a test starts and ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.driver import DriverInstance
from lab.identity import write_credentials
from lab.mps import MpsOnNode
from lab.simulated import SimulatedGpus

from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.slices import devices_of
from tests.e2e.harness.waiting import PATIENCE, wait_until

_LISTENING = "listening for the kubelet"
_REGISTERED = "registered with the kubelet"


def _logged(instance: DriverInstance, event: str) -> int:
    """How often the instance has logged `event`: slices alone do not tell how far it is, they outlive a restart."""
    log = instance.process.log
    return log.read_text().count(event) if log.exists() else 0


@dataclass
class DriverOnNode:
    """The plugin of the test node. `current` is the instance that serves; a test may have others beside it."""

    cluster: Cluster
    gpus: SimulatedGpus
    gpu_count: int
    current: DriverInstance | None = None
    others: list[DriverInstance] = field(default_factory=list)
    _logged_before: dict[str, int] = field(default_factory=dict)

    @property
    def mps(self) -> MpsOnNode:
        """The MPS service of the node, which outlives the plugin's instances."""
        return MpsOnNode(self.cluster.layout, self.cluster.node, self.gpus)

    def ensure_serving(self) -> None:
        """Bring the node into the state that tests begin with: MPS, one instance, no faults, all GPUs published."""
        if not self.mps.running():
            self.mps.start()
        for instance in self.others:
            instance.stop()
        self.others.clear()
        if self.current is None or not self.current.running():
            self.start()
        self.wait_published(self.gpu_count)

    def start(self, *, program: Sequence[str] = (), extra_arguments: Sequence[str] = ()) -> DriverInstance:
        """Start an instance with a new pod UID and a new token and wait until the kubelet has registered it.

        It becomes `current`; the former one stays as it is.
        """
        instance = self.launch(program=program, extra_arguments=extra_arguments)
        self.wait_registered()
        return instance

    def launch(self, *, program: Sequence[str] = (), extra_arguments: Sequence[str] = ()) -> DriverInstance:
        """Start an instance as `start` does, without waiting for the kubelet, which may not even run."""
        write_credentials(self.cluster.layout, self.cluster.api, self.cluster.node)
        instance = DriverInstance.new(
            self.cluster.layout, self.cluster.node, self.gpus, program=program, extra_arguments=extra_arguments
        )
        self._launch(instance)
        if self.current is not None and self.current.running():
            self.others.append(self.current)
        self.current = instance
        return instance

    def restart(self) -> None:
        """Start the same instance again, as the kubelet restarts a container of a pod, and wait for its registration.

        A pod that starts before has its Prepare fail, and the kubelet comes back to it after 60 to 90 s only.
        """
        assert self.current is not None
        self._launch(self.current)
        self.wait_registered()

    def wait_registered(self, seconds: float = PATIENCE) -> None:
        """Wait until the kubelet has registered `current` since it was last started; a failure shows its log."""
        self._wait_logged(_REGISTERED, seconds)

    def wait_listening(self, seconds: float = PATIENCE) -> None:
        """Wait until `current` has its sockets, which a kubelet that starts later finds at once."""
        self._wait_logged(_LISTENING, seconds)

    def _wait_logged(self, event: str, seconds: float) -> None:
        instance = self.current
        assert instance is not None
        before = self._logged_before[event]
        try:
            wait_until(
                f"the plugin {event}",
                lambda: _logged(instance, event) > before or not instance.running(),
                seconds,
                every=0.05,
            )
        except TimeoutError as error:
            raise AssertionError(f"{error}; its log ends with:\n{instance.process.tail()}") from error
        assert instance.running(), f"the plugin ended; its log ends with:\n{instance.process.tail()}"

    def _launch(self, instance: DriverInstance) -> None:
        self._logged_before = {event: _logged(instance, event) for event in (_LISTENING, _REGISTERED)}
        instance.start()

    def replace_gpus(self, gpus: SimulatedGpus, gpu_count: int) -> None:
        """Let the node be another machine: everything ends, the GPUs are exchanged, everything starts."""
        self.stop_all()
        self.mps.stop()
        self.gpus, self.gpu_count = gpus, gpu_count
        self.ensure_serving()

    def stop_all(self) -> None:
        """End all instances of the plugin with SIGTERM; MPS goes on."""
        for instance in [*self.others, *([self.current] if self.current else [])]:
            instance.stop()
        self.others.clear()
        self.current = None

    def wait_published(self, gpus: int, seconds: float = PATIENCE) -> None:
        """Wait until a complete pool with that many whole GPUs is published; a failure shows the plugin's log."""
        api, node_name = self.cluster.api, self.cluster.node.name

        def published() -> bool:
            assert self.current is not None
            assert self.current.running(), f"the plugin ended; its log ends with:\n{self.current.process.tail()}"
            return len(devices_of(api, node_name)) == gpus

        try:
            wait_until(f"{gpus} GPUs published for {node_name}", published, seconds)
        except TimeoutError as error:
            tail = self.current.process.tail() if self.current else ""
            raise AssertionError(
                f"{error}; published: {sorted(devices_of(api, node_name))}; the plugin's log ends with:\n{tail}"
            ) from error
