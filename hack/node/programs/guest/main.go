// The program in the image of the containers that tests/node runs, and the sandbox ("pause") of their pods.
//
// It prints what its container got, as one JSON line that starts with "guest: ", then waits for SIGTERM. `--once` ends
// at once instead, `--crash` ends with status 1, and `--pause` only waits. Nothing else is in the image: no shell.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

type node struct {
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	Opens bool   `json:"opens"`
}

type seen struct {
	Env     map[string]string `json:"env"`
	Devices map[string]node   `json:"devices"`
	Mounts  map[string]string `json:"mounts"` // path -> options
	Filled  map[string]int64  `json:"filled"` // folder -> bytes that could be written to it
	Started int64             `json:"started_ns"`
}

func environment() map[string]string {
	found := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		found[name] = value
	}
	return found
}

func devices() map[string]node {
	found := map[string]node{}
	_ = filepath.Walk("/dev", func(path string, info os.FileInfo, err error) error {
		if err != nil || info.Mode()&os.ModeDevice == 0 || strings.HasPrefix(path, "/dev/pts/") {
			return nil
		}
		status, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		number := uint64(status.Rdev)
		file, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
		if err == nil {
			_ = file.Close()
		}
		found[path] = node{
			Major: uint32(number>>8&0xfff | number>>32&^0xfff),
			Minor: uint32(number&0xff | number>>12&^0xff),
			Opens: err == nil,
		}
		return nil
	})
	return found
}

func mounts() map[string]string {
	found := map[string]string{}
	text, _ := os.ReadFile("/proc/self/mountinfo")
	for _, line := range strings.Split(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) > 5 {
			found[fields[4]] = fields[5]
		}
	}
	return found
}

// Writes to each folder of GUEST_FILL (separated by colons) until it is full, at most 64 MiB, and takes it back.
func filled() map[string]int64 {
	found := map[string]int64{}
	for _, folder := range filepath.SplitList(os.Getenv("GUEST_FILL")) {
		found[folder] = 0
		path := filepath.Join(folder, "fill")
		file, err := os.Create(path)
		if err != nil {
			continue
		}
		piece := make([]byte, 64<<10)
		for found[folder] < 64<<20 {
			written, err := file.Write(piece)
			found[folder] += int64(written)
			if err != nil {
				break
			}
		}
		_ = file.Close()
		_ = os.Remove(path)
	}
	return found
}

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	how := strings.Join(os.Args[1:], " ")
	if how != "--pause" {
		line, err := json.Marshal(seen{environment(), devices(), mounts(), filled(), time.Now().UnixNano()})
		if err != nil {
			panic(err)
		}
		fmt.Printf("guest: %s\n", line)
	}
	switch how {
	case "--once":
		return
	case "--crash":
		os.Exit(1)
	}
	// As process 1 of a sandbox it inherits orphans, and they want to be waited for.
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	for {
		select {
		case <-end:
			return
		case <-children:
			for pid := 1; pid > 0; {
				pid, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			}
		}
	}
}
