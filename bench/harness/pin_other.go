//go:build !linux

package harness

import (
	"errors"
	"os/exec"
)

func allowedCPUs() ([]int, error) {
	return nil, errors.New("-pin works on linux only")
}

func startOn(cmd *exec.Cmd, cpu int) error {
	if cpu < 0 {
		return cmd.Start()
	}
	return errors.New("pinning works on linux only")
}
