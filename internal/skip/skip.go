// Package skip says what a test leaves out because the machine lacks
// something, and lets the environment forbid that.
package skip

import (
	"os"
	"testing"
)

// variable is the environment variable that forbids to leave anything out.
// .ci/run sets it.
const variable = "RAMJET_TEST_ALL"

// Because skips the test if there is a reason to, or fails it if the
// environment says that nothing may be left out.
func Because(t testing.TB, reason error) {
	t.Helper()
	switch {
	case reason == nil:
	case os.Getenv(variable) != "":
		t.Fatalf("%s allows nothing to be left out: %v", variable, reason)
	default:
		t.Skip("left out:", reason)
	}
}
