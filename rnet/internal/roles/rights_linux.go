package roles

import (
	"errors"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// StartIfAllowed is StartAs for a change that takes rights, such as another
// user. Where they are missing the test is skipped.
func StartIfAllowed(t testing.TB, change func(*exec.Cmd), role string, args ...string) *Process {
	t.Helper()
	cmd := Command(t, role, args...)
	cmd.Path = "/proc/self/exe" // another user may not reach it by its path
	change(cmd)
	p, err := start(t, cmd)
	if errors.Is(err, syscall.EPERM) {
		t.Skip("needs the rights of root:", err)
	}
	require.NoError(t, err)
	return p
}
