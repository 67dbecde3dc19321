package roles

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/stretchr/testify/require"
)

// StartIfAllowed is StartAs for a change that takes rights, such as another
// user. Where they are missing the test is left out.
func StartIfAllowed(t testing.TB, change func(*exec.Cmd), role string, args ...string) *Process {
	t.Helper()
	cmd := Command(t, role, args...)
	cmd.Path = "/proc/self/exe" // another user may not reach it by its path
	change(cmd)
	p, err := start(t, cmd)
	if errors.Is(err, syscall.EPERM) {
		skip.Because(t, fmt.Errorf("it needs the rights of root: %w", err))
	}
	require.NoError(t, err)
	return p
}
