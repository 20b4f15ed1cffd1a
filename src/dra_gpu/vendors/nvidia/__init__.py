"""NVIDIA: NVML, nvidia-smi, the driver root and what a container needs of them."""
