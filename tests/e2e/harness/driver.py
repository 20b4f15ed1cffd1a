"""The driver on the test node: one simulated machine, and the plugin instances that a test starts and ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.api import wait_until
from lab.driver import DriverInstance
from lab.identity import write_credentials
from lab.simulated import SimulatedGpus

from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.slices import devices_of


@dataclass
class DriverOnNode:
    """The plugin of the test node. `current` is the instance that serves; a test may have others beside it."""

    cluster: Cluster
    gpus: SimulatedGpus
    gpu_count: int
    current: DriverInstance | None = None
    others: list[DriverInstance] = field(default_factory=list)

    def ensure_serving(self) -> None:
        """Bring the node into the state that tests begin with: one instance, no faults, all GPUs published."""
        for instance in self.others:
            instance.stop()
        self.others.clear()
        if self.current is None or not self.current.running():
            self.start()
        self.wait_published(self.gpu_count)

    def start(self, *, program: Sequence[str] = (), extra_arguments: Sequence[str] = ()) -> DriverInstance:
        """Start an instance with a new pod UID and a new token; it becomes `current`, the former one stays as it is."""
        write_credentials(self.cluster.layout, self.cluster.api, self.cluster.node)
        instance = self.new_instance(program=program, extra_arguments=extra_arguments)
        instance.start()
        if self.current is not None and self.current.running():
            self.others.append(self.current)
        self.current = instance
        return instance

    def new_instance(self, *, program: Sequence[str] = (), extra_arguments: Sequence[str] = ()) -> DriverInstance:
        """Describe an instance without starting it."""
        return DriverInstance.new(
            self.cluster.layout, self.cluster.node, self.gpus, program=program, extra_arguments=extra_arguments
        )

    def restart(self) -> None:
        """Start the same instance again, as the kubelet restarts a container of the same pod."""
        assert self.current is not None
        self.current.start()

    def stop_all(self) -> None:
        """End all instances with SIGTERM."""
        for instance in [*self.others, *([self.current] if self.current else [])]:
            instance.stop()
        self.others.clear()
        self.current = None

    def wait_published(self, gpus: int, seconds: float = 20.0) -> None:
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
