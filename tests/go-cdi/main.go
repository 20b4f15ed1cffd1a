// Command go-cdi answers, for the tests, the questions that only the library of the container runtimes can answer:
// does a device id resolve in a directory of specifications, what does a container then get, and which is the lowest
// version that a specification may declare.
//
//	go-cdi resolve DIR ID...   one JSON object: the OCI specification of a container that got the devices
//	go-cdi minimum-versions    reads one JSON specification a line, writes one version a line
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// A specification with many mounts is longer than bufio's default line.
const longestLine = 16 << 20

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "go-cdi:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) >= 3 && args[0] == "resolve":
		return resolve(args[1], args[2:])
	case len(args) == 1 && args[0] == "minimum-versions":
		return minimumVersions()
	default:
		return errors.New("usage: go-cdi resolve DIR ID... | go-cdi minimum-versions")
	}
}

func resolve(dir string, ids []string) error {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	if err := cache.Refresh(); err != nil {
		return err
	}
	container := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
	if _, err := cache.InjectDevices(container, ids...); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(container)
}

func minimumVersions() error {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		var spec specs.Spec
		if err := json.Unmarshal(lines.Bytes(), &spec); err != nil {
			return err
		}
		version, err := minimumVersion(spec)
		if err != nil {
			return err
		}
		fmt.Println(version)
	}
	return lines.Err()
}

// minimumVersion asks about one device at a time: the library is compiled with the loop variables of Go 1.19, by which
// it looks for host paths and mount types in the last device only. Asked about a whole specification it answers too low
// a version when the feature is in another device.
func minimumVersion(spec specs.Spec) (string, error) {
	devices := spec.Devices
	highest := ""
	for _, device := range devices {
		spec.Devices = []specs.Device{device}
		version, err := specs.MinimumRequiredVersion(&spec)
		if err != nil {
			return "", err
		}
		highest = max(highest, version)
	}
	return highest, nil
}
