"""Everything that is said to the Kubernetes API server: client, list+watch cache, slice publisher, events.

Only this package knows HTTP towards Kubernetes. It imports `dra_gpu.api` and `dra_gpu.inventory` and nothing else
of ours.
"""
