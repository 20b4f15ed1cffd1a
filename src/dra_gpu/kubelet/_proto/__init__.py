"""Generated from the .proto files beside it (see generate.py); only `dra_gpu.kubelet` imports it."""
