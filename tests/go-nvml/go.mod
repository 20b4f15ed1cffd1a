module dra-driver-gpu.test/go-nvml

go 1.24

require github.com/NVIDIA/go-nvml v0.13.4-1
