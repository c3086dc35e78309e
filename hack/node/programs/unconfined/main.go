// runc without seccomp: takes the filter out of a container's configuration, then becomes the runc on the PATH.
//
// kubelet asks for the runtime's default filter for every sandbox, and a runc that was built without libseccomp (a C library
// with headers that few machines have) refuses it. The tests are not about system calls.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

func withoutFilter(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // limits are 64-bit integers
	if err := decoder.Decode(&config); err != nil {
		return err
	}
	linux, ok := config["linux"].(map[string]any)
	if !ok || linux["seccomp"] == nil {
		return nil
	}
	delete(linux, "seccomp")
	if text, err = json.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

func run() error {
	bundle := slices.IndexFunc(os.Args, func(one string) bool { return one == "--bundle" || one == "-b" })
	if slices.Contains(os.Args, "create") && bundle >= 0 && bundle+1 < len(os.Args) {
		if err := withoutFilter(filepath.Join(os.Args[bundle+1], "config.json")); err != nil {
			return err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return syscall.Exec(runc, append([]string{runc}, os.Args[1:]...), os.Environ())
}

func main() {
	fmt.Fprintln(os.Stderr, "unconfined:", run())
	os.Exit(1)
}
