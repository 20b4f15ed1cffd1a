"""The controller's name for the queue that the node plugin has, too."""

from dra_gpu.apiserver.work_queue import WorkQueue

__all__ = ["WorkQueue"]
