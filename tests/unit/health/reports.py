"""What a vendor reports, and the moments at which it does."""

from datetime import UTC, datetime, timedelta

from dra_gpu.health.faults import GpuFaults
from dra_gpu.health.policy import HealthPolicy
from dra_gpu.health.state import GpuHealth
from dra_gpu.health.verdicts import Evict, told
from dra_gpu.inventory.model import MigPlacement
from dra_gpu.vendors.health import HealthEvent, HealthEventKind, HealthProbe, RecoveryAction

GPU = "GPU-0"
BOOT = "boot-1"
DRIVER = "gpu.nvidia.com"
START = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
SMALL = MigPlacement(profile=0, start=0, size=1)
OTHER = MigPlacement(profile=0, start=1, size=1)


def after(seconds: float) -> datetime:
    """Return a moment so long after the start."""
    return START + timedelta(seconds=seconds)


def xid(number: int, gpu_instance: int | None = None, gpu: str = GPU) -> HealthEvent:
    """Return an XID."""
    return HealthEvent(gpu, HealthEventKind.XID, number, gpu_instance, None if gpu_instance is None else 0)


def lost(gpu: str = GPU) -> HealthEvent:
    """Return the event of a GPU that is gone."""
    return HealthEvent(gpu, HealthEventKind.LOST)


def probe(**facts: object) -> HealthProbe:
    """Return a look at a GPU that is well, but for these facts."""
    return HealthProbe(**{"gpu": GPU, "recovery_action": RecoveryAction.NONE, "reset_mark": "a", **facts})


class Gpu:
    """One GPU under a policy, as a test tells its story."""

    def __init__(self, policy: HealthPolicy | None = None, evict: Evict = Evict.NEVER) -> None:
        self.policy = policy or HealthPolicy()
        self.evict = evict
        self.faults = GpuFaults(GPU)
        self.boot = BOOT

    @property
    def told(self) -> GpuHealth:
        """What others hear of it."""
        return told(self.faults, DRIVER, self.evict)

    def happens(self, event: HealthEvent, at: float, placement: MigPlacement | None = None) -> GpuHealth:
        """Report an event."""
        self.faults = self.policy.happened(self.faults, event, placement, after(at))
        return self.told

    def looks(self, at: float, *, current: bool = True, **facts: object) -> GpuHealth:
        """Look at it."""
        self.faults = self.policy.looked(self.faults, probe(**facts), self.boot, after(at), current=current)
        return self.told

    def taints(self) -> dict[str, tuple[str, str]]:
        """Return value and effect of each taint of the whole GPU, by the last part of its key."""
        return {one.key.removeprefix(f"{DRIVER}/"): (one.value, one.effect.value) for one in self.told.whole.taints}
