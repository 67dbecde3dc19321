package rgnet

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

// TestMain turns the test binary into a peer process when a test started it
// as one, and otherwise fails if the tests leave something behind, gnet's engines too (its pool
// of workers stays).
func TestMain(m *testing.M) {
	roles.Play()
	leak.MainOnceIdle(m, "golang.org/x/sync/errgroup")
}
