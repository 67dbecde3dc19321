package rcm

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestAThousandConnectionsLeaveNothing(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		dialer, acceptor := f.newSide(t), f.newSide(t)
		l := f.listen(t, addr, ListenConfig{})
		accepted := make(chan Conn)
		qps := make(chan *verbs.QP, 1)
		stopped := make(chan error, 1)
		go func() {
			defer close(accepted)
			for {
				r, err := l.Accept(within(t))
				if err != nil {
					stopped <- nil // closed below
					return
				}
				qp, err := acceptor.newQP()
				if err != nil {
					stopped <- err
					return
				}
				c, err := r.Accept(within(t), qp, ConnParam{})
				if err != nil {
					stopped <- err
					return
				}
				qps <- qp
				accepted <- c
			}
		}()
		connect := func() {
			r := f.resolve(t, addr)
			qp, err := dialer.newQP()
			require.NoError(t, err)
			near, err := r.Connect(within(t), qp, ConnParam{})
			require.NoError(t, err)
			far := await(t, accepted) // ends with the handshake or the acceptor's end
			require.NotNil(t, far)
			require.NoError(t, near.Disconnect())
			await(t, far.Disconnected()) // ends with the DREQ
			require.NoError(t, far.Disconnect())
			require.NoError(t, qp.Close())
			require.NoError(t, (<-qps).Close())
		}
		connect() // what a device makes once is there now
		var before holdings
		require.Eventually(t, func() bool {
			before = f.holdings(t)
			return before.ids <= 1 // the listener's
		}, 2*lingerTimeout, 10*time.Millisecond)
		count := 1000
		if f.iwarp {
			count = 300
		}
		if f.kernel && f.host.Is6() {
			count = 100 // a guest without hardware support takes 10 ms for each
		}
		for range count {
			connect()
		}
		// Ends when the kernel has had the last farewells, and is done with
		// the ids.
		require.Eventually(t, func() bool {
			after := f.holdings(t)
			if !after.within(before) {
				t.Logf("%+v", after)
				return false
			}
			return true
		}, 2*lingerTimeout, 10*time.Millisecond, "before: %+v", before)
		require.NoError(t, l.Close())
		require.NoError(t, await(t, stopped)) // ends with Close
	})
}

// holdings is what could be left behind by connections.
type holdings struct {
	descriptors int    // of this process
	goroutines  int    // of this module
	ids         int    // of rdma_cm
	pinned      string // VmLck and VmPin of this process
	objects     string // what the kernel holds on the device: QPs, ids and the rest
}

func (f *testFabric) holdings(t testing.TB) holdings {
	t.Helper()
	h := holdings{descriptors: openDescriptors(), goroutines: strings.Count(ownGoroutines(), "created by ")}
	ucm.Lock()
	if ucm.file != nil {
		h.ids = len(ucm.file.ids)
	}
	ucm.Unlock()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmLck") || strings.HasPrefix(line, "VmPin") {
			h.pinned += line
		}
	}
	if f.kernel && os.Getenv("RAMJET_MODEL") == "" { // the model does not tell
		out, err := exec.Command("rdma", "resource", "show", f.device).CombinedOutput()
		require.NoError(t, err, string(out))
		h.objects = string(out)
	}
	return h
}

// within reports whether nothing has come on top of before.
func (h holdings) within(before holdings) bool {
	return h.descriptors <= before.descriptors && h.goroutines <= before.goroutines && h.ids <= before.ids &&
		h.pinned == before.pinned && h.objects == before.objects
}

// BenchmarkConnect is what a connection costs from Resolve to Disconnect,
// both sides in this process.
func BenchmarkConnect(b *testing.B) {
	for _, f := range benchFabrics(b) {
		b.Run(f.title(), func(b *testing.B) { benchmarkConnect(b, f) })
	}
}

// benchFabrics is overFabrics for benchmarks.
func benchFabrics(b *testing.B) []*testFabric {
	list := []*testFabric{onSoft()}
	if os.Getenv(devicesVariable) != "" {
		list = append(list, kernelFabrics(b)...)
	}
	return list
}

func benchmarkConnect(b *testing.B, f *testFabric) {
	addr := f.addr(b)
	dialer, acceptor := f.newSide(b), f.newSide(b)
	l := f.listen(b, addr, ListenConfig{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			r, err := l.Accept(b.Context())
			if err != nil {
				return // closed below
			}
			qp, err := acceptor.newQP()
			if err != nil {
				b.Error(err)
				return
			}
			c, err := r.Accept(b.Context(), qp, ConnParam{})
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
		qp, err := dialer.newQP()
		require.NoError(b, err)
		c, err := r.Connect(b.Context(), qp, ConnParam{})
		require.NoError(b, err)
		c.Disconnect()
		qp.Close()
	}
	l.Close()
	<-ended // ends with Close
}

// BenchmarkResolveNobody is what a dial pays where nobody listens.
func BenchmarkResolveNobody(b *testing.B) {
	addr := at("127.0.0.1", freePort(b))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Soft().Resolve(b.Context(), addr); !errors.Is(err, ErrNoListener) {
			b.Fatal(err)
		}
	}
}
