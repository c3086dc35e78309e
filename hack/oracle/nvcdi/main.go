// Answers what `nvidia-ctk cdi generate` writes on a machine (nvidia-container-toolkit, pkg/nvcdi).
//
// In:  {"root": "/...", "config": "/...", "mode": "nvml", "devices": ["all"]}
//
//	root:    a folder that is / while the question is answered: libraries, /dev, /proc, /sys
//	config:  below root, what its libnvidia-ml.so.1 is to pretend (tests/support/nvml/fake_nvml.c)
//	mode:    "nvml" for GPUs and MIG instances, "imex" for IMEX channels
//	devices: uuids or numbers, or "all"
//
// Out: {"spec": the CDI specification} or {"error": "why there is none"}
//
// Needs the right to change its root (CAP_SYS_CHROOT). Reads one JSON question per line from standard
// input, writes one JSON answer per line to standard output. Built and run by hack/oracle/oracle.py.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

type question struct {
	Root    string   `json:"root"`
	Config  string   `json:"config"`
	Mode    string   `json:"mode"`
	Devices []string `json:"devices"`
}

type answer struct {
	Spec  *specs.Spec `json:"spec,omitempty"`
	Error string      `json:"error,omitempty"`
}

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var asked question
		if err := in.Decode(&asked); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			giveUp(err)
		}
		var given answer
		err := within(asked.Root, func() (err error) {
			given.Spec, err = specification(asked)
			return err
		})
		if err != nil {
			given.Error = err.Error()
		}
		if err := out.Encode(given); err != nil {
			giveUp(err)
		}
	}
}

func giveUp(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// within calls do while root is the root of this process, and comes back.
func within(root string, do func() error) error {
	outside, err := os.Open("/")
	if err != nil {
		return err
	}
	defer outside.Close()
	if err := syscall.Chroot(root); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	defer func() {
		if err := errors.Join(outside.Chdir(), syscall.Chroot(".")); err != nil {
			giveUp(err)
		}
	}()
	return do()
}

// specification does as cmd/nvidia-ctk/cdi/generate does without options, but for the device "all".
func specification(asked question) (*specs.Spec, error) {
	if err := os.Setenv("FAKE_NVML_CONFIG", asked.Config); err != nil {
		return nil, err
	}
	var namers []nvcdi.DeviceNamer
	for _, strategy := range []string{nvcdi.DeviceNameStrategyIndex, nvcdi.DeviceNameStrategyUUID} {
		namer, err := nvcdi.NewDeviceNamer(strategy)
		if err != nil {
			return nil, err
		}
		namers = append(namers, namer)
	}
	generator, err := nvcdi.New(nvcdi.WithMode(asked.Mode), nvcdi.WithDeviceNamers(namers...))
	if err != nil {
		return nil, err
	}
	made, err := generator.GetSpec(asked.Devices...)
	if err != nil {
		return nil, err
	}
	return made.Raw(), nil
}
