package rcm_test

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestConnectionsLeaveNothing(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		dialer, acceptor := f.NewSide(t), f.NewSide(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		accepted := make(chan rcm.Conn)
		qps := make(chan *verbs.QP, 1)
		stopped := make(chan error, 1)
		go func() {
			defer close(accepted)
			for {
				r, err := l.Accept(cmtest.Within(t))
				if err != nil {
					stopped <- nil // closed below
					return
				}
				qp, err := acceptor.NewQP()
				if err != nil {
					stopped <- err
					return
				}
				c, err := r.Accept(cmtest.Within(t), qp, rcm.ConnParam{})
				if err != nil {
					stopped <- err
					return
				}
				qps <- qp
				accepted <- c
			}
		}()
		connect := func() {
			r := f.MustResolve(t, addr)
			qp, err := dialer.NewQP()
			require.NoError(t, err)
			near, err := r.Connect(cmtest.Within(t), qp, rcm.ConnParam{})
			require.NoError(t, err)
			far := cmtest.Await(t, accepted) // ends with the handshake or the acceptor's end
			require.NotNil(t, far)
			require.NoError(t, near.Disconnect())
			cmtest.Await(t, far.Disconnected()) // ends with the DREQ
			require.NoError(t, far.Disconnect())
			require.NoError(t, qp.Close())
			require.NoError(t, (<-qps).Close())
		}
		connect() // what a device makes once is there now
		var before holdings
		require.Eventually(t, func() bool {
			before = holdingsOf(f, t)
			return before.ids() <= 1 // the listener's
		}, 2*disconnectTime, 10*time.Millisecond)
		count := 1000
		if f.Kernel {
			count = 150 // an emulated guest takes 50 ms for each
		}
		for range count {
			connect()
		}
		// Ends when the kernel has had the last disconnects, and is done with
		// the ids.
		require.Eventually(t, func() bool {
			after := holdingsOf(f, t)
			if !after.within(before) {
				t.Logf("%+v", after)
				return false
			}
			return true
		}, 2*disconnectTime, 10*time.Millisecond, "before: %+v", before)
		require.NoError(t, l.Close())
		require.NoError(t, cmtest.Await(t, stopped)) // ends with Close
	})
}

// holdings is what could be left behind by connections.
type holdings struct {
	descriptors int    // of this process
	goroutines  int    // of this module
	pinned      string // VmLck and VmPin of this process
	objects     string // what the kernel holds on the device: QPs, ids and the rest
}

func holdingsOf(f *cmtest.Fabric, t testing.TB) holdings {
	t.Helper()
	h := holdings{descriptors: leak.Descriptors(), goroutines: len(leak.Goroutines())}
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmLck") || strings.HasPrefix(line, "VmPin") {
			h.pinned += line
		}
	}
	if f.Kernel && os.Getenv("RAMJET_MODEL") == "" { // the model does not tell
		out, err := exec.Command("rdma", "resource", "show", f.Device).CombinedOutput()
		require.NoError(t, err, string(out))
		h.objects = string(out)
	}
	return h
}

// ids counts the ids of rdma_cm.
func (h holdings) ids() int {
	_, count, found := strings.Cut(h.objects, "cm_id ")
	if !found {
		return 0
	}
	n, _ := strconv.Atoi(strings.Fields(count)[0])
	return n
}

// disconnectTime is how long the kernel may repeat the end of a connection to a peer that
// does not answer.
const disconnectTime = 10 * time.Second

// Within reports whether nothing has come on top of before.
func (h holdings) within(before holdings) bool {
	return h.descriptors <= before.descriptors && h.goroutines <= before.goroutines &&
		h.pinned == before.pinned && h.objects == before.objects
}

// BenchmarkConnect is what a connection costs from Resolve to Disconnect,
// both sides in this process.
func BenchmarkConnect(b *testing.B) {
	for _, f := range benchFabrics(b) {
		b.Run(f.Title(), func(b *testing.B) { benchmarkConnect(b, f) })
	}
}

// benchFabrics is overFabrics for benchmarks.
func benchFabrics(b *testing.B) []*cmtest.Fabric {
	list := []*cmtest.Fabric{softAt("127.0.0.1")}
	if cmtest.HaveDevices() {
		list = append(list, cmtest.FabricsOn(b, fabricOn)...)
	}
	return list
}

func benchmarkConnect(b *testing.B, f *cmtest.Fabric) {
	addr := f.Addr(b)
	dialer, acceptor := f.NewSide(b), f.NewSide(b)
	l := f.MustListen(b, addr, rcm.ListenConfig{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			r, err := l.Accept(b.Context())
			if err != nil {
				return // closed below
			}
			qp, err := acceptor.NewQP()
			if err != nil {
				b.Error(err)
				return
			}
			c, err := r.Accept(b.Context(), qp, rcm.ConnParam{})
			if err != nil {
				b.Error(err)
				return
			}
			<-c.Disconnected() // ends with the DREQ
			c.Disconnect()
			qp.Close()
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		r, err := f.Resolve(b.Context(), addr)
		require.NoError(b, err)
		qp, err := dialer.NewQP()
		require.NoError(b, err)
		c, err := r.Connect(b.Context(), qp, rcm.ConnParam{})
		require.NoError(b, err)
		c.Disconnect()
		qp.Close()
	}
	l.Close()
	<-ended // ends with Close
}

// BenchmarkResolveNobody is what a dial pays where nobody listens.
func BenchmarkResolveNobody(b *testing.B) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(b))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := softcm.New(softcm.Config{}).Resolve(b.Context(), addr); !errors.Is(err, rcm.ErrNoListener) {
			b.Fatal(err)
		}
	}
}
