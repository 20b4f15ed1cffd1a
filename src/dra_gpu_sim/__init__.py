"""Simulated GPUs: a real NVML library, device nodes, /proc and sysfs of a node that has none.

For tests and laptops only. It is never part of an image, and `dra_gpu` never imports it.
"""
