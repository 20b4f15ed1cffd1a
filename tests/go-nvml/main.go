// Enumerates the simulated GPUs through go-nvml: a second client of the library's binary interface, independent of
// nvidia-ml-py. Prints one JSON document; with -mig it also makes and removes a MIG instance on GPU 0.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

type gpu struct {
	Index       int    `json:"index"`
	UUID        string `json:"uuid"`
	Name        string `json:"name"`
	Minor       int    `json:"minor"`
	BusID       string `json:"busId"`
	DeviceID    uint32 `json:"deviceId"`
	Memory      uint64 `json:"memory"`
	CC          string `json:"computeCapability"`
	Brand       int32  `json:"brand"`
	ActiveLinks int    `json:"activeLinks"`
	Fabric      string `json:"fabric"`
	MigCapable  bool   `json:"migCapable"`
}

type profile struct {
	ID         uint32   `json:"id"`
	Name       string   `json:"name"`
	Slices     uint32   `json:"slices"`
	SM         uint32   `json:"sm"`
	MemoryMiB  uint64   `json:"memoryMiB"`
	Placements []uint32 `json:"starts"`
	Size       uint32   `json:"size"`
}

type mig struct {
	Profiles  []profile `json:"profiles"`
	UUID      string    `json:"uuid"`
	GI        int       `json:"gi"`
	CI        int       `json:"ci"`
	SM        uint32    `json:"sm"`
	AfterGone string    `json:"afterDestroy"`
}

type report struct {
	Driver string `json:"driver"`
	CUDA   int    `json:"cuda"`
	GPUs   []gpu  `json:"gpus"`
	MIG    *mig   `json:"mig,omitempty"`
}

func must(what string, ret nvml.Return) {
	if ret != nvml.SUCCESS {
		fmt.Fprintf(os.Stderr, "%s: %s\n", what, nvml.ErrorString(ret))
		os.Exit(1)
	}
}

func read(index int) gpu {
	device, ret := nvml.DeviceGetHandleByIndex(index)
	must("handle", ret)
	g := gpu{Index: index}
	g.UUID, ret = device.GetUUID()
	must("uuid", ret)
	g.Name, ret = device.GetName()
	must("name", ret)
	g.Minor, ret = device.GetMinorNumber()
	must("minor", ret)
	pci, ret := device.GetPciInfo()
	must("pci", ret)
	for _, c := range pci.BusId {
		if c == 0 {
			break
		}
		g.BusID += string(rune(c))
	}
	g.DeviceID = pci.PciDeviceId >> 16
	memory, ret := device.GetMemoryInfo_v2()
	must("memory", ret)
	g.Memory = memory.Total
	major, minor, ret := device.GetCudaComputeCapability()
	must("compute capability", ret)
	g.CC = fmt.Sprintf("%d.%d", major, minor)
	brand, ret := device.GetBrand()
	must("brand", ret)
	g.Brand = int32(brand)
	for link := 0; link < nvml.NVLINK_MAX_LINKS; link++ {
		if state, ret := device.GetNvLinkState(link); ret == nvml.SUCCESS && state == nvml.FEATURE_ENABLED {
			g.ActiveLinks++
		}
	}
	fabric, ret := device.GetGpuFabricInfoV().V2()
	if ret == nvml.SUCCESS {
		g.Fabric = fmt.Sprintf("state %d clique %d", fabric.State, fabric.CliqueId)
	}
	_, _, ret = device.GetMigMode()
	g.MigCapable = ret == nvml.SUCCESS
	return g
}

func profiles(device nvml.Device) []profile {
	var found []profile
	for number := 0; number < nvml.GPU_INSTANCE_PROFILE_COUNT; number++ {
		info, ret := device.GetGpuInstanceProfileInfoV(number).V2()
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		must("profile", ret)
		p := profile{ID: info.Id, Slices: info.SliceCount, SM: info.MultiprocessorCount, MemoryMiB: info.MemorySizeMB}
		for _, c := range info.Name {
			if c == 0 {
				break
			}
			p.Name += string(rune(c))
		}
		places, ret := device.GetGpuInstancePossiblePlacements(&nvml.GpuInstanceProfileInfo{Id: info.Id})
		must("placements", ret)
		for _, place := range places {
			p.Placements = append(p.Placements, place.Start)
			p.Size = place.Size
		}
		found = append(found, p)
	}
	return found
}

func instance() *mig {
	device, ret := nvml.DeviceGetHandleByIndex(0)
	must("handle", ret)
	activation, ret := device.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	must("mig mode", ret)
	must("mig activation", activation)
	m := &mig{Profiles: profiles(device)}
	info, ret := device.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
	must("1g profile", ret)
	gi, ret := device.CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{Start: 3, Size: 1})
	must("create gpu instance", ret)
	giInfo, ret := gi.GetInfo()
	must("gpu instance", ret)
	m.GI = int(giInfo.Id)
	ciProfile, ret := gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 0)
	must("compute profile", ret)
	ci, ret := gi.CreateComputeInstance(&ciProfile)
	must("create compute instance", ret)
	partition, ret := device.GetMigDeviceHandleByIndex(0)
	must("mig device", ret)
	m.UUID, ret = partition.GetUUID()
	must("mig uuid", ret)
	m.CI, ret = partition.GetComputeInstanceId()
	must("compute instance id", ret)
	attributes, ret := partition.GetAttributes()
	must("attributes", ret)
	m.SM = attributes.MultiprocessorCount
	must("destroy compute instance", ci.Destroy())
	must("destroy gpu instance", gi.Destroy())
	_, ret = partition.GetUUID()
	m.AfterGone = nvml.ErrorString(ret)
	activation, ret = device.SetMigMode(nvml.DEVICE_MIG_DISABLE)
	must("mig mode off", ret)
	must("mig deactivation", activation)
	return m
}

func main() {
	withMig := flag.Bool("mig", false, "make and remove a MIG instance on GPU 0")
	flag.Parse()
	must("init", nvml.Init())
	var r report
	var ret nvml.Return
	r.Driver, ret = nvml.SystemGetDriverVersion()
	must("driver version", ret)
	r.CUDA, ret = nvml.SystemGetCudaDriverVersion()
	must("cuda version", ret)
	count, ret := nvml.DeviceGetCount()
	must("count", ret)
	for index := 0; index < count; index++ {
		r.GPUs = append(r.GPUs, read(index))
	}
	if *withMig {
		r.MIG = instance()
	}
	must("shutdown", nvml.Shutdown())
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
