// Command go-kubelet-messages records what a kubelet says to a DRA plugin, and what it reads of the answers, with the
// types of one version of k8s.io/kubelet. Standard input: the plugin's answers as JSON, hexadecimal bytes by name;
// standard output: the record (tests/component/upgrade/kubelet_messages.py runs it for every version).
package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strings"

	"google.golang.org/protobuf/proto"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// unknown is field 77, a string, which no version has: what a later release might have added.
var unknown = []byte{0xea, 0x04, 0x05, 'l', 'a', 't', 'e', 'r'}

// generated is what the generators of all versions have in common: gogo/protobuf until 1.34, then google's own.
type generated interface{ Reset() }

func marshal(message generated) []byte {
	var raw []byte
	var err error
	switch typed := message.(type) {
	case interface{ Marshal() ([]byte, error) }:
		raw, err = typed.Marshal()
	case proto.Message:
		raw, err = proto.MarshalOptions{Deterministic: true}.Marshal(typed)
	default:
		err = fmt.Errorf("%T cannot be written", message)
	}
	if err != nil {
		panic(err)
	}
	return raw
}

func unmarshal(raw []byte, message generated) {
	var err error
	switch typed := message.(type) {
	case interface{ Unmarshal([]byte) error }:
		err = typed.Unmarshal(raw)
	case proto.Message:
		err = proto.Unmarshal(raw, typed)
	default:
		err = fmt.Errorf("%T cannot be read", message)
	}
	if err != nil {
		panic(err)
	}
}

func kubelet() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "k8s.io/kubelet" {
			return module.Version
		}
	}
	panic("k8s.io/kubelet is not built in")
}

func main() {
	var answers map[string]string
	if err := json.NewDecoder(os.Stdin).Decode(&answers); err != nil {
		panic(err)
	}
	said := map[string][]byte{
		"GetInfo":                        marshal(&registration.InfoRequest{}),
		"registered":                     marshal(&registration.RegistrationStatus{PluginRegistered: true}),
		"refused":                        marshal(&registration.RegistrationStatus{Error: "plugin gpu.nvidia.com is unwanted"}),
		"v1alpha1.NodeWatchResources":    marshal(&health.NodeWatchResourcesRequest{}),
		"v1.NodePrepareResources":        marshal(&drav1.NodePrepareResourcesRequest{Claims: claims[drav1.Claim]("whole", "share", "bad")}),
		"v1.NodeUnprepareResources":      marshal(&drav1.NodeUnprepareResourcesRequest{Claims: claims[drav1.Claim]("whole")}),
		"v1beta1.NodePrepareResources":   marshal(&drav1beta1.NodePrepareResourcesRequest{Claims: claims[drav1beta1.Claim]("whole", "share", "bad")}),
		"v1beta1.NodeUnprepareResources": marshal(&drav1beta1.NodeUnprepareResourcesRequest{Claims: claims[drav1beta1.Claim]("whole")}),
	}
	hexadecimal := map[string]string{}
	for name, raw := range said {
		hexadecimal[name] = hex.EncodeToString(raw)
	}
	heard := map[string]any{}
	for name, text := range answers {
		raw, err := hex.DecodeString(text)
		if err != nil {
			panic(err)
		}
		heard[name] = hear(name, raw)
		// A later release of the driver may say more than this kubelet knows.
		if later := hear(name, append(append([]byte{}, raw...), unknown...)); fmt.Sprint(later) != fmt.Sprint(heard[name]) {
			panic(fmt.Sprintf("%s: an unknown field changes what is read: %v", name, later))
		}
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	record := map[string]any{"kubelet": kubelet(), "says": hexadecimal, "reads": heard}
	if err := out.Encode(record); err != nil {
		panic(err)
	}
}

type device struct {
	Requests []string `json:"requests"`
	Pool     string   `json:"pool"`
	Device   string   `json:"device"`
	CDI      []string `json:"cdi"`
	Share    string   `json:"share,omitempty"`
}

// field finds a field by its name without case: the generators disagree about UID and CDI.
func field(of any, name string) reflect.Value {
	return reflect.ValueOf(of).Elem().FieldByNameFunc(func(found string) bool { return strings.EqualFold(found, name) })
}

func claims[C any](names ...string) []*C {
	found := []*C{}
	for _, name := range names {
		claim := new(C)
		field(claim, "namespace").SetString("team")
		field(claim, "uid").SetString("uid-" + name)
		field(claim, "name").SetString(name)
		found = append(found, claim)
	}
	return found
}

// share returns the share's id where this version's device has one.
func share(of any) string {
	if typed, ok := of.(interface{ GetShareId() string }); ok {
		return typed.GetShareId()
	}
	return ""
}

type answer struct {
	Devices []device `json:"devices,omitempty"`
	Error   string   `json:"error,omitempty"`
}

type deviceHealth struct {
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	Health  string `json:"health"`
	Message string `json:"message,omitempty"`
}

// message returns what is said about a device where this version has a field for it.
func message(of any) string {
	if typed, ok := of.(interface{ GetMessage() string }); ok {
		return typed.GetMessage()
	}
	return ""
}

// hear decodes one answer of the plugin as this kubelet does.
func hear(name string, raw []byte) any {
	found := map[string]answer{}
	switch name {
	case "GetInfo":
		var info registration.PluginInfo
		unmarshal(raw, &info)
		return map[string]any{"type": info.Type, "name": info.Name, "endpoint": info.Endpoint, "versions": info.SupportedVersions}
	case "v1alpha1.NodeWatchResources":
		var response health.NodeWatchResourcesResponse
		unmarshal(raw, &response)
		told := []deviceHealth{}
		for _, it := range response.Devices {
			told = append(told, deviceHealth{it.GetDevice().GetPoolName(), it.GetDevice().GetDeviceName(), it.GetHealth().String(), message(it)})
		}
		return told
	case "v1.NodePrepareResources":
		var response drav1.NodePrepareResourcesResponse
		unmarshal(raw, &response)
		for uid, claim := range response.Claims {
			one := answer{Error: claim.Error}
			for _, it := range claim.Devices {
				one.Devices = append(one.Devices, device{it.RequestNames, it.PoolName, it.DeviceName, field(it, "cdiDeviceIds").Interface().([]string), share(it)})
			}
			found[uid] = one
		}
	case "v1beta1.NodePrepareResources":
		var response drav1beta1.NodePrepareResourcesResponse
		unmarshal(raw, &response)
		for uid, claim := range response.Claims {
			one := answer{Error: claim.Error}
			for _, it := range claim.Devices {
				one.Devices = append(one.Devices, device{it.RequestNames, it.PoolName, it.DeviceName, field(it, "cdiDeviceIds").Interface().([]string), share(it)})
			}
			found[uid] = one
		}
	case "v1.NodeUnprepareResources":
		var response drav1.NodeUnprepareResourcesResponse
		unmarshal(raw, &response)
		for uid, claim := range response.Claims {
			found[uid] = answer{Error: claim.Error}
		}
	case "v1beta1.NodeUnprepareResources":
		var response drav1beta1.NodeUnprepareResourcesResponse
		unmarshal(raw, &response)
		for uid, claim := range response.Claims {
			found[uid] = answer{Error: claim.Error}
		}
	default:
		panic("no answer is called " + name)
	}
	return found
}
