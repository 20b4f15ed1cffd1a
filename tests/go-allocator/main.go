// go-allocator answers what kube-scheduler's own allocator decides, one JSON line in, one JSON line out.
//
// A line holds {node, classes, slices, claims, allocated}; the answer holds `allocations` (one for each claim, or none
// when nothing fits) or `error`. With `expressions` it holds `matches` instead: for each expression and each device of
// the slices "true", "false", "compile" or "runtime". The features are those of a stock Kubernetes v1.37.
//
// For long sequences a line without slices has node, classes and slices of the line before. With `keep`
// the claims hold what they got, on top of `allocated`, until a line names them in `release`. With `repeat` the decision
// is made so many times and `nanoseconds` tells how long each one took.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

type input struct {
	Node        corev1.Node                  `json:"node"`
	Classes     classes                      `json:"classes"`
	Slices      []*resourceapi.ResourceSlice `json:"slices"`
	Claims      []*resourceapi.ResourceClaim `json:"claims"`
	Allocated   []*resourceapi.ResourceClaim `json:"allocated"`
	Expressions []string                     `json:"expressions"`
	Keep        bool                         `json:"keep"`
	Release     []string                     `json:"release"`
	Repeat      int                          `json:"repeat"`
}

type output struct {
	Allocations []resourceapi.AllocationResult `json:"allocations"`
	Matches     [][]string                     `json:"matches,omitempty"`
	Nanoseconds []int64                        `json:"nanoseconds,omitempty"`
	Error       string                         `json:"error,omitempty"`
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("device class %q not found", name)
}

var celFeatures = cel.Features{EnableConsumableCapacity: true}

var features = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true,
	DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true,
}

// stateOf collects what allocated claims hold, as the scheduler's claim tracker does.
func stateOf(claims []*resourceapi.ResourceClaim) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			switch {
			case ptr.Deref(result.AdminAccess, false):
			case result.ShareID != nil:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
				if result.ConsumedCapacity != nil {
					state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
				}
			default:
				state.AllocatedDevices.Insert(id)
			}
		}
	}
	return state
}

// The scheduler keeps compiled selectors from one pod to the next.
var selectors = cel.NewCache(10, celFeatures)

// kept holds, by name, the claims that keep what they got.
var kept = map[string]*resourceapi.ResourceClaim{}

func decide(in input) (out output) {
	for _, name := range in.Release {
		delete(kept, name)
	}
	for _, claim := range kept {
		in.Allocated = append(in.Allocated, claim)
	}
	state := stateOf(in.Allocated)
	for range max(in.Repeat, 1) {
		start := time.Now()
		out.Allocations, out.Error = nil, ""
		out = allocate(in, state, out)
		if in.Repeat > 0 {
			out.Nanoseconds = append(out.Nanoseconds, time.Since(start).Nanoseconds())
		}
	}
	if in.Keep && out.Allocations != nil {
		for i, claim := range in.Claims {
			claim.Status.Allocation = &out.Allocations[i]
			kept[claim.Name] = claim
		}
	}
	return out
}

func allocate(in input, state structured.AllocatedState, out output) output {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	allocator, err := structured.NewAllocator(ctx, features, state, in.Classes, in.Slices, selectors)
	if err == nil {
		out.Allocations, err = allocator.Allocate(ctx, &in.Node, in.Claims)
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

func evaluate(in input) (out output) {
	for _, expression := range in.Expressions {
		compiled := cel.GetCompiler(celFeatures).CompileCELExpression(expression, cel.Options{})
		row := []string{}
		for _, slice := range in.Slices {
			for _, device := range slice.Spec.Devices {
				row = append(row, verdict(compiled, slice.Spec.Driver, device))
			}
		}
		out.Matches = append(out.Matches, row)
	}
	return out
}

func verdict(compiled cel.CompilationResult, driver string, device resourceapi.Device) string {
	if compiled.Error != nil {
		return "compile"
	}
	matches, _, err := compiled.DeviceMatches(context.Background(), cel.Device{Driver: driver,
		AllowMultipleAllocations: device.AllowMultipleAllocations, Attributes: device.Attributes, Capacity: device.Capacity})
	if err != nil {
		return "runtime"
	}
	return fmt.Sprint(matches)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	encoder := json.NewEncoder(os.Stdout)
	var before input
	for lines.Scan() {
		var in input
		if err := json.Unmarshal(lines.Bytes(), &in); err != nil {
			fmt.Fprintln(os.Stderr, "go-allocator:", err)
			os.Exit(1)
		}
		if in.Slices == nil {
			in.Node, in.Classes, in.Slices = before.Node, before.Classes, before.Slices
		}
		before = in
		answer := decide
		if in.Expressions != nil {
			answer = evaluate
		}
		_ = encoder.Encode(answer(in))
	}
}
