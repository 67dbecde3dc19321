package rnet

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/verbs"
)

func init() { roles.Add("vastring", func(args []string) error { return vastRing(args[0]) }) }

// vastRing dials as a peer whose ring lies in a region of 8 GiB.
func vastRing(address string) error {
	p, err := rawPeerBy(softcm.New(softcm.Config{}))
	if err != nil {
		return err
	}
	vast, err := p.pd.AllocMR(int(min(int64(1)<<33, math.MaxInt)), verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{Sparse: true})
	if err != nil {
		return err
	}
	hello := p.hello()
	hello.Link.RingAddr, hello.Link.RingKey = vast.Addr(), vast.RKey()
	err = errors.Join(p.dial(address, hello.Marshal()), p.send(frame(mux.FramePing, 0, 0, nil)))
	if err != nil {
		return err
	}
	for end := time.Now().Add(hang.Time); time.Now().Before(end); hang.Pause() {
		if p.receive() > 0 {
			fmt.Println("served")
			break
		}
		if p.gone() {
			fmt.Println("refused")
			break
		}
	}
	os.Stdin.Read(make([]byte, 1)) // ended by the parent
	return nil
}

// A peer whose ring lies in a vast region, which costs it nothing, does not get that much of our
// address space: 128 sessions with the longest, a tebibyte, would have all of it.
func TestPeerWithAVastRegionTakesNoAddressSpace(t *testing.T) {
	size := func() (bytes int64) {
		text, err := os.ReadFile("/proc/self/statm")
		require.NoError(t, err)
		pages, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		require.NoError(t, err)
		return pages * int64(os.Getpagesize())
	}
	ln, err := (&ListenConfig{Transport: Soft}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	before := size()
	child := roles.Start(t, "vastring", ln.Addr().String())
	require.Equal(t, "refused", child.Line(t))
	require.Less(t, size()-before, int64(1<<32))
	child.Stop()
}
