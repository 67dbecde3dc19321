package killtest

import (
	"fmt"
	"os"
	"testing"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

// environment returns the transport that the environment asks for, "" if it
// says nothing. All but rnet.Auto are forced on the examples.
func environment() rnet.Transport { return rnet.Transport(os.Getenv("RNET_TRANSPORT")) }

// RequireTransport checks that an example has printed the transport that it has
// to use, in the place of %s in line: the one that is forced on it, or usual
// where the environment says nothing. With rnet.Auto as either, any will do.
func RequireTransport(t testing.TB, printed, line string, usual rnet.Transport) {
	t.Helper()
	want := environment()
	if want == "" {
		want = usual
	}
	if want != rnet.Auto {
		require.Contains(t, printed, fmt.Sprintf(line, want))
	}
}

// NeedTCP leaves the test out if the environment lets listeners serve no
// ordinary clients.
func NeedTCP(t testing.TB) {
	t.Helper()
	if over := environment(); over == rnet.Soft || over == rnet.RDMA {
		t.Skip("left out: the listener serves no TCP")
	}
}
