"""The local mode: the shipped node plugin on simulated GPUs, with a kubelet and an API server that fit in one process.

Real processes and real protocols; only the scheduler and the container runtime are stand-ins, and say so.
"""
