// Answers what Kubernetes' own CEL environment makes of device selectors.
//
// Reads one JSON question per line from standard input, writes one JSON answer per line to standard output.
// Built and run by hack/oracle/oracle.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
)

type question struct {
	Expression string             `json:"expression"`
	Driver     string             `json:"driver"`
	Device     resourceapi.Device `json:"device"`
	// New asks for the environment of new objects, which the two features shape, instead of that of stored ones.
	New                bool `json:"new"`
	ConsumableCapacity bool `json:"consumableCapacity"`
	ListTypeAttributes bool `json:"listTypeAttributes"`
}

type answer struct {
	// Expect is true, false, "compile-error", "runtime-error", or "panic" where the environment itself breaks.
	Expect  any     `json:"expect"`
	Message string  `json:"message"`
	Cost    *uint64 `json:"cost,omitempty"`
}

func ask(q question) (a answer) {
	defer func() {
		if problem := recover(); problem != nil {
			a = answer{Expect: "panic", Message: fmt.Sprint(problem)}
		}
	}()
	features := cel.Features{
		EnableConsumableCapacity: q.ConsumableCapacity,
		EnableListTypeAttributes: q.ListTypeAttributes,
	}
	options := cel.Options{DisableCostEstimation: true}
	if q.New {
		kind := environment.NewExpressions
		options.EnvType = &kind
	}
	program := cel.GetCompiler(features).CompileCELExpression(q.Expression, options)
	if program.Error != nil {
		return answer{Expect: "compile-error", Message: program.Error.Detail}
	}
	matches, details, err := program.DeviceMatches(context.Background(), cel.Device{
		Driver:                   q.Driver,
		AllowMultipleAllocations: q.Device.AllowMultipleAllocations,
		Attributes:               q.Device.Attributes,
		Capacity:                 q.Device.Capacity,
	})
	if details != nil {
		a.Cost = details.ActualCost()
	}
	if err != nil {
		a.Expect, a.Message = "runtime-error", err.Error()
	} else {
		a.Expect = matches
	}
	return a
}

func main() {
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
