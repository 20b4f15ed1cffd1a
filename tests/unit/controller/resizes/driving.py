"""Controllers that run until their next call to the API server, and stop there for as long as a test wants."""

from dra_gpu.apiserver import errors
from dra_gpu.apiserver.kubernetes_api import Listing
from dra_gpu.apiserver.resources import CLAIM_RESIZES
from dra_gpu.controller.resizes.objects import CLAIMS, PODS
from dra_gpu.controller.resizes.resizer import Key, Resizer
from dra_gpu.controller.resizes.starting import Rules
from tests.unit.controller.resizes.cluster import NAMESPACE, Cluster

KEY = Key(NAMESPACE, "training")
LABEL = "resource.dra-gpu.dev/claim-resize"


class Replica:
    """A controller that leads, or believes so."""

    def __init__(self, cluster: Cluster, *, beyond: bool = True):
        self.cluster = cluster
        self.resizer = Resizer(cluster, Rules(frozenset({"gpu.nvidia.com"}), beyond=beyond), "image")
        self.work = None
        self.again: float | None = None

    def hear(self) -> None:
        """Hear everything that has changed."""
        labelled = [one for one in self.cluster.typed(CLAIMS) if LABEL in one.metadata.labels]
        pods = [one for one in self.cluster.typed(PODS) if LABEL in one.metadata.labels]
        self.resizer.resizes._take_over(Listing(self.cluster.typed(CLAIM_RESIZES), "1"))
        self.resizer.growing._take_over(Listing(tuple(labelled), "1"))
        self.resizer.pods._take_over(Listing(tuple(pods), "1"))

    def advance(self) -> bool:
        """Do the next call to the API server, or begin to look; tell whether there is more to do."""
        if self.work is None:
            self.work = self.resizer.look(KEY)
        try:
            self.work.send(None)
        except StopIteration as done:
            self.work, self.again = None, done.value
            return False
        except errors.ApiError:
            self.work = None
            return False
        return True

    def look(self) -> None:
        """Look once, from beginning to end."""
        while self.advance():
            pass

    def die(self) -> None:
        """Stop where it is, with a call that has not reached the server."""
        if self.work is not None:
            self.work.close()
        self.work = None
