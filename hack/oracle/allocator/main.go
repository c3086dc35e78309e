// Answers what Kubernetes' own structured allocator makes of claims on one node.
//
// Reads one JSON question per line from standard input, writes one JSON answer per line to standard output.
// Built and run by hack/oracle/oracle.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

type question struct {
	// Gates are the names of the feature gates that are on.
	Gates   []string                     `json:"gates"`
	Node    *v1.Node                     `json:"node"`
	Slices  []*resourceapi.ResourceSlice `json:"slices"`
	Classes []*resourceapi.DeviceClass   `json:"classes"`
	// Claims with an allocation hold their devices; the others are to be allocated together, in order.
	Claims []*resourceapi.ResourceClaim `json:"claims"`
	// Milliseconds after which the search is given up.
	Milliseconds int64 `json:"milliseconds"`
}

type answer struct {
	// Outcome is "solution", "none", "error", "error-on-node" (the pod may fit elsewhere), "timeout",
	// or "panic" where the allocator itself breaks.
	Outcome string                         `json:"outcome"`
	Results []resourceapi.AllocationResult `json:"results,omitempty"`
	Message string                         `json:"message,omitempty"`
}

type classes []*resourceapi.DeviceClass

func (all classes) List() ([]*resourceapi.DeviceClass, error) { return all, nil }

func (all classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, each := range all {
		if each.Name == name {
			return each, nil
		}
	}
	return nil, fmt.Errorf("DeviceClass %q does not exist", name)
}

// featuresOf is AllocatorFeatures of kube-scheduler's plugin dynamicresources.
func featuresOf(names []string) structured.Features {
	on := sets.New(names...)
	return structured.Features{
		AdminAccess:             on.Has("DRAAdminAccess"),
		PrioritizedList:         on.Has("DRAPrioritizedList"),
		PartitionableDevices:    on.Has("DRAPartitionableDevices"),
		DeviceTaints:            on.Has("DRADeviceTaints"),
		DeviceBindingAndStatus:  on.HasAll("DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"),
		ConsumableCapacity:      on.Has("DRAConsumableCapacity"),
		FractionalCapacityRange: on.Has("DRAFractionalCapacityRange"),
		ListTypeAttributes:      on.Has("DRAListTypeAttributes"),
		OptionalNodeOperations:  on.Has("DRAOptionalNodeOperations"),
		DerivedAttributes:       on.Has("DRADerivedAttributes"),
		CompatibilityGroups:     on.Has("DRADeviceCompatibilityGroups"),
	}
}

// stateOf is foreachAllocatedDevice of the same plugin, over all claims.
func stateOf(claims []*resourceapi.ResourceClaim, consumableCapacity bool) structured.AllocatedState {
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
			if ptr.Deref(result.AdminAccess, false) {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if !consumableCapacity || result.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
			}
		}
	}
	return state
}

// Compiled selectors, which do not depend on anything but their text and these features.
var caches = map[cel.Features]*cel.Cache{}

func cacheOf(features structured.Features) *cel.Cache {
	key := cel.Features{
		EnableConsumableCapacity: features.ConsumableCapacity,
		EnableListTypeAttributes: features.ListTypeAttributes,
	}
	if caches[key] == nil {
		caches[key] = cel.NewCache(200, key)
	}
	return caches[key]
}

func ask(q question) (a answer) {
	defer func() {
		if problem := recover(); problem != nil {
			a = answer{Outcome: "panic", Message: fmt.Sprint(problem)}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(q.Milliseconds)*time.Millisecond)
	defer cancel()
	features := featuresOf(q.Gates)
	var waiting []*resourceapi.ResourceClaim
	for _, claim := range q.Claims {
		if claim.Status.Allocation == nil {
			waiting = append(waiting, claim)
		}
	}
	state := stateOf(q.Claims, features.ConsumableCapacity)
	allocator, err := structured.NewAllocator(ctx, features, state, classes(q.Classes), q.Slices, cacheOf(features))
	if err != nil {
		return answer{Outcome: "error", Message: err.Error()}
	}
	results, err := allocator.Allocate(ctx, q.Node, waiting)
	switch {
	case err != nil && ctx.Err() != nil:
		return answer{Outcome: "timeout", Message: err.Error()}
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return answer{Outcome: "error-on-node", Message: err.Error()}
	case err != nil:
		return answer{Outcome: "error", Message: err.Error()}
	case results == nil:
		return answer{Outcome: "none"}
	}
	return answer{Outcome: "solution", Results: results}
}

func main() {
	// The third, "stable", serves only without consumable capacity, and goes through pools in no order.
	structured.EnableAllocators("incubating", "experimental")
	questions := bufio.NewScanner(os.Stdin)
	questions.Buffer(make([]byte, 1<<20), 1<<26)
	answers := json.NewEncoder(os.Stdout)
	for questions.Scan() {
		var q question
		if err := json.Unmarshal(questions.Bytes(), &q); err != nil {
			fmt.Fprintln(os.Stderr, "not a question:", err)
			os.Exit(2)
		}
		if err := answers.Encode(ask(q)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if err := questions.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
