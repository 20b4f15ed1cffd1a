"""A real Kubernetes on one machine, for development and end-to-end tests.

What it promises: `python -m lab up` builds (once) and starts etcd, the control plane and one kubelet + containerd
pair per node, all from pinned Go modules, with Kubernetes' default feature gates; `python -m lab down` leaves nothing
behind, also after a crash. It needs Linux, root, Go and Debian's packages, no container registry, and nothing but
Python's standard library, so that it runs before anything is installed.
"""
