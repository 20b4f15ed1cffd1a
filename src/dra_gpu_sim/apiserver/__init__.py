"""An API server in memory, spoken to over real HTTP: what local mode and component tests have in place of a cluster.

It keeps Kubernetes' rules where a driver can trip over them (resource versions, watches with bookmarks and
compaction, optimistic locking, limits of ResourceSlices, fields that a server with a feature gate off drops without
a word) and leaves out everything else: no authorization beyond one bearer token, no admission, no controllers.
"""

from dra_gpu_sim.apiserver.faults import FaultRule, Faults
from dra_gpu_sim.apiserver.request_log import RequestLog, RequestRecord
from dra_gpu_sim.apiserver.server import ApiServer, ServerOptions
from dra_gpu_sim.apiserver.store import ObjectStore

__all__ = ["ApiServer", "FaultRule", "Faults", "ObjectStore", "RequestLog", "RequestRecord", "ServerOptions"]
