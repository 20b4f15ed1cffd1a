"""Logs of the node plugin: as those of every process of the driver."""

from dra_gpu.logs import LEVELS, configure

__all__ = ["LEVELS", "configure"]
