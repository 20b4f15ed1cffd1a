"""Settings of the controller: flags, each with an environment variable; the election's as NVIDIA's chart names them."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_gpu.apiserver.leader_election import LeaseTimes
from dra_gpu.controller.lost_nodes import GRACE_SECONDS, LOOK_SECONDS
from dra_gpu.flags import Flags, new_parser, seconds
from dra_gpu.logs import LEVELS
from dra_gpu.metrics.address import Address, http_flags

_LEASE_NAME = "dra-gpu-controller"


class Growth(enum.Enum):
    """How far a claim may grow."""

    NONE = "None"  # back to what it was allocated, after it gave some of it away
    ANY = "Any"  # as far as quota and device go


@dataclass(frozen=True, slots=True)
class Settings:
    """How one replica of the controller runs.

    Attributes:
        kubeconfig: how to reach the API server; None inside a pod.
        namespace: of the lease.
        lease_name: its name; replicas of one release share it.
        pod_name: names this replica in the lease.
        times: of the election.
        sweep_period: seconds between two looks for slices of lost nodes.
        sweep_grace: seconds for which a node must be missing.
        growth: whether claims may have more than they were allocated.
        growth_image: image of the pods that carry growths through the scheduler; they never start.
        http_endpoint: where metrics and health are served; None for nowhere.
        metrics_path: of the metrics there.
        log_level: one of debug, info, warning, error.
    """

    kubeconfig: Path | None
    namespace: str
    lease_name: str
    pod_name: str
    times: LeaseTimes
    sweep_period: float
    sweep_grace: float
    growth: Growth
    growth_image: str
    http_endpoint: Address | None
    metrics_path: str
    log_level: str


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the settings.

    Exits the process with a message when one is missing or wrong, as argparse does.
    """
    parser = new_parser(
        "dra-gpu controller", "dra-gpu controller [options]", "Does what one process does for a whole cluster."
    )
    add = Flags(parser, environment).add
    default = LeaseTimes()
    add("--kubeconfig", "KUBECONFIG", None, "how to reach the API server; not needed inside a pod", type=Path)
    add("--namespace", "NAMESPACE", "dra-gpu", "namespace of the lease")
    add("--lease-name", "LEASE_NAME", _LEASE_NAME, "its name: who holds it leads")
    add("--pod-name", "POD_NAME", "", "names this replica in the lease (default: the host's name)")
    add(
        "--leader-election-lease-duration",
        "LEADER_ELECTION_LEASE_DURATION",
        default.lease,
        "seconds for which other replicas wait for a leader that is not heard of",
        type=seconds,
    )
    add(
        "--leader-election-renew-deadline",
        "LEADER_ELECTION_RENEW_DEADLINE",
        default.renew,
        "seconds after which a leader that could not renew stops",
        type=seconds,
    )
    add(
        "--leader-election-retry-period",
        "LEADER_ELECTION_RETRY_PERIOD",
        default.retry,
        "seconds between two tries",
        type=seconds,
    )
    add("--sweep-period", None, LOOK_SECONDS, "seconds between two looks for slices of lost nodes", type=seconds)
    add("--sweep-grace", None, GRACE_SECONDS, "seconds for which a node must be missing", type=seconds)
    add(
        "--allow-growth",
        "ALLOW_GROWTH",
        Growth.NONE.value,
        "whether a ClaimResize may ask for more than its claim was allocated: None, or Any that the quota allows",
        choices=[one.value for one in Growth],
    )
    add(
        "--growth-image",
        "GROWTH_IMAGE",
        "dra-driver-gpu",
        "image of the pods that ask the scheduler for more; they never start, so that it is not pulled",
    )
    http_flags(add)
    add("--log-level", "LOG_LEVEL", "info", "what to log", choices=LEVELS)
    found = parser.parse_args(arguments)
    try:
        times = LeaseTimes(
            found.leader_election_lease_duration,
            found.leader_election_renew_deadline,
            found.leader_election_retry_period,
        )
    except ValueError as error:
        parser.error(f"--leader-election-*: {error}")
    return Settings(
        kubeconfig=found.kubeconfig,
        namespace=found.namespace,
        lease_name=found.lease_name,
        pod_name=found.pod_name,
        times=times,
        sweep_period=found.sweep_period,
        sweep_grace=found.sweep_grace,
        growth=Growth(found.allow_growth),
        growth_image=found.growth_image,
        http_endpoint=found.http_endpoint,
        metrics_path=found.metrics_path,
        log_level=found.log_level,
    )
