//go:build !linux

package child

import "os/exec"

// Tie starts a command. On this system nothing ends it if this program is
// killed.
func Tie(cmd *exec.Cmd, _ <-chan struct{}) error { return cmd.Start() }
