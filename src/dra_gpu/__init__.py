"""A Kubernetes Dynamic Resource Allocation (DRA) driver for GPUs.

This module holds the version and imports nothing: what every process pays at start is decided by its own root.
"""

__version__ = "0.1.0"
