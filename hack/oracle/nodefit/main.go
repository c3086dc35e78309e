// Answers which nodes kube-scheduler's own plugins let a pod run on, and how they score those nodes.
//
// Reads one world per line as JSON from standard input, writes one JSON answer per line to standard output.
// All default plugins run with default arguments and feature gates, except DynamicResources (the pod's devices),
// DefaultPreemption, and VolumeBinding's score. Built once per Kubernetes version and run by hack/oracle/oracle.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"github.com/go-logr/logr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

type question struct {
	Nodes []json.RawMessage `json:"nodes"`
	// Objects of all other kinds as the API server stores them, bound pods among them.
	Objects []json.RawMessage `json:"objects"`
	// Assumed pods are not bound yet; they are scheduled in this order, each to its node, before Pod is.
	Assumed []assumedPod    `json:"assumed"`
	Pod     json.RawMessage `json:"pod"`
}

type assumedPod struct {
	Pod  json.RawMessage `json:"pod"`
	Node string          `json:"node"`
}

type answer struct {
	// Refused: node -> the plugin that kube-scheduler blames, the first in its order. Other nodes fit.
	Refused map[string]string `json:"refused"`
	// Also: node -> the other plugins that refuse it when each plugin is asked alone.
	Also map[string][]string `json:"also"`
	// Reasons: node -> the message of the plugin that is blamed.
	Reasons map[string]string `json:"reasons"`
	// Scores: plugin -> node that fits -> 0 to 100, normalized, before the plugin's weight. Plugins that skip are absent.
	Scores map[string]map[string]int64 `json:"scores"`
	// LeftOut: names of assumed pods that their node refuses, so that they count nowhere.
	LeftOut []string `json:"leftOut"`
	// Errored: for some node the answer is an error, or scores cannot be computed, which ends kube-scheduler's whole attempt.
	Errored bool `json:"errored"`
	// ScoreError: why nodes that fit have no scores.
	ScoreError string `json:"scoreError,omitempty"`
	// Error: the question cannot be answered.
	Error string `json:"error,omitempty"`
}

func defaultProfile() (*config.KubeSchedulerProfile, error) {
	defaults, err := latest.Default()
	if err != nil {
		return nil, err
	}
	profile := &defaults.Profiles[0]
	plugins := &profile.Plugins.MultiPoint
	plugins.Enabled = slices.DeleteFunc(plugins.Enabled, func(plugin config.Plugin) bool {
		return plugin.Name == names.DynamicResources || plugin.Name == names.DefaultPreemption
	})
	// asked about a CSIStorageCapacity without `capacity`, it panics (which ends kube-scheduler 1.37)
	profile.Plugins.Score.Disabled = append(profile.Plugins.Score.Disabled, config.Plugin{Name: names.VolumeBinding})
	return profile, nil
}

// panicked is the latest panic in a plugin's goroutine, which would have ended kube-scheduler.
var panicked atomic.Value

// answerTo turns a panic into an answer, so that the next question is answered too.
func answerTo(profile *config.KubeSchedulerProfile, asked question) (given answer) {
	defer func() {
		if cause := recover(); cause != nil {
			panicked.Store(fmt.Sprintf("panic: %v %s", cause, debug.Stack()))
		}
		if cause := panicked.Swap(""); cause != "" {
			given = answer{Error: cause.(string)}
		}
	}()
	given, err := judge(profile, asked)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return given
}

func main() {
	klog.SetLogger(logr.Discard())
	panicked.Store("")
	utilruntime.ReallyCrash = false
	utilruntime.PanicHandlers = []func(context.Context, any){func(_ context.Context, cause any) {
		panicked.Store(fmt.Sprintf("panic: %v %s", cause, debug.Stack()))
	}}
	metrics.Register()
	profile, err := defaultProfile()
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<26)
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		if err := out.Encode(answerTo(profile, asked)); err != nil {
			panic(err)
		}
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
}
