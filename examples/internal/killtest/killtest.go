// Package killtest has the kill tests of the examples. A kill test puts an example under
// its real workload, kills the process at the other end and starts it again. It does so
// over TCP and over what ramjet offers instead, and compares what the example sees. The
// package also checks that an example takes the transport that the environment forces on it.
package killtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/stretchr/testify/require"
)

// timeVariable is the environment variable that says how long a kill test takes, as
// time.ParseDuration has it.
const timeVariable = "RAMJET_KILL_TEST"

// defaultTime is how long a kill test takes if nobody says so: what CI has time for.
const defaultTime = 2 * time.Second

// pause is how long a worker waits after a failure, as a sensible program does.
const pause = 10 * time.Millisecond

// hold is how many failures each worker sees before the peer is started again:
// those of what was under way, and of new attempts.
const hold = 3

// patience is how long something may take that must come.
const patience = time.Minute

// Trial is what a kill test needs: a workload and the process at its other end.
type Trial struct {
	// Address is what the workload dials.
	Address string
	// Workers is how many goroutines work.
	Workers int
	// Do is one operation of a worker, with its result checked. It fails with
	// the error that a program would get.
	Do func(ctx context.Context, worker int) error
	// Kind says what kind of failure an error is. Without it, Kind of this
	// package does.
	Kind func(error) string
	// Kill ends the process at the other end by SIGKILL, Restart starts it
	// again with the same address.
	Kill, Restart func() error
	// Behind says that Address is not that process but a proxy in front of it,
	// which lives on and ends connections as the process ended its own.
	Behind bool
}

// Compare makes the same kill test over TCP and over shared memory. The workload
// must not fail before the kill and not after it has recovered, must recover,
// over the transport that it had, and must see the same kinds of failure over
// both, see agree. Over shared memory a process that was killed must not seem to
// have closed its connections, see noEnd. What one kill leads to is in part chance:
// where the kinds differ the kill tests are made again, and all kills count together.
func Compare(t *testing.T, prepare func(t *testing.T, dialer rnet.Dialer) Trial) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out: -short")
	}
	if forced := environment(); forced != "" && forced != rnet.Auto {
		t.Skipf("left out: RNET_TRANSPORT=%s allows no comparison", forced)
	}
	tcp, fast := map[string]bool{}, map[string]bool{}
	var differ error
	early := false // a dial was, once
	for range kills {
		if _, ok := tryOver(t, rnet.TCP, tcp, prepare); !ok {
			return
		}
		tooEarly, ok := tryOver(t, rnet.Auto, fast, prepare)
		switch {
		case !ok:
			return
		case tooEarly && early:
			t.Fatal("after two restarts all went over TCP")
		case tooEarly:
			early = true
			t.Log("once more: after the restart all went over TCP, for the one dial found no streams, and then a server")
			continue
		}
		if differ = agree(tcp, fast); differ == nil {
			return
		}
		t.Log("once more: ", differ)
	}
	require.NoError(t, differ)
}

// kills is how many a comparison takes at most.
const kills = 5

// tryOver makes a kill test and adds the kinds of failure to those that were seen. It is too early
// if a dial found nobody who serves streams, and connected when the server had begun to listen:
// that connection goes over TCP for as long as it lives, and a workload that has no other with it.
func tryOver(t *testing.T, over rnet.Transport, seen map[string]bool, prepare func(t *testing.T, dialer rnet.Dialer) Trial) (tooEarly, ok bool) {
	want := over
	if over == rnet.Auto {
		want = rnet.Soft
	}
	ok = t.Run("over "+string(want), func(t *testing.T) {
		// however busy the machine is
		trial := prepare(t, rnet.Dialer{Transport: over, HeadStart: time.Minute})
		kinds, overSessions := trial.run(t)
		for _, kind := range kinds {
			seen[kind] = true
		}
		if want == rnet.Soft {
			require.NoError(t, noEnd(kinds, trial.Behind))
		}
		told := rnet.Explain(trial.Address)
		require.NotEmpty(t, told)
		if tooEarly = want == rnet.Soft && overSessions == 0 && slices.ContainsFunc(told, connectedOnly); tooEarly {
			return
		}
		require.Equal(t, want == rnet.Soft, overSessions > 0, "bytes have gone over sessions; %v", told)
		if last := told[len(told)-1]; !connectedOnly(last) {
			require.Equal(t, want, last.Transport, "after the restart: %s", last)
		}
	})
	return tooEarly, ok
}

// connectedOnly reports whether a dial that found nobody who serves streams has connected all the same. It need
// not be the last dial: others of the same moment may have found streams, and been too late to be used.
func connectedOnly(d rnet.Decision) bool {
	return d.Transport == rnet.TCP && errors.Is(d.Err, rcm.ErrNoListener)
}

// The ways in which a connection fails when its peer dies.
const (
	Refused = "connection refused" // it was dialed
	Reset   = "connection reset"
	Ended   = "connection ended" // as if the peer had closed it
	Lost    = "connection lost"  // the library hides which of the two
)

// agree says where the kinds of failure over TCP and over ramjet differ. All
// losses are one kind: over TCP it is chance whether one shows as an end or as a
// reset, as it depends on whether the process that was killed had read all that
// was sent to it.
func agree(tcp, fast map[string]bool) error {
	if a, b := sum(tcp), sum(fast); !maps.Equal(a, b) {
		return fmt.Errorf("kinds of failure: over TCP %v, over ramjet %v", tcp, fast)
	}
	return nil
}

// noEnd looks for connections that seem to have been closed by a process that was
// killed. Over TCP that happens; over ramjet nothing that is cut off may pass for
// complete. A proxy that lives on may have passed it on.
func noEnd(kinds []string, behind bool) error {
	if !behind && slices.Contains(kinds, Ended) {
		return errors.New("a process that was killed seems to have closed its connections")
	}
	return nil
}

// sum takes all losses for one kind.
func sum(kinds map[string]bool) map[string]bool {
	one := map[string]bool{}
	for kind := range kinds {
		if kind == Reset || kind == Ended {
			kind = Lost
		}
		one[kind] = true
	}
	return one
}

// carried returns how many bytes went over the sessions to an address that live.
func carried(address string) (n uint64) {
	for _, s := range rnet.ReadStats().Sessions {
		if s.Transport == rnet.Soft && s.RemoteAddr.String() == address {
			n += s.BytesIn + s.BytesOut
		}
	}
	return n
}

// phase is a part of a kill test.
type phase int

const (
	before phase = iota // the kill
	down                // and not recovered yet
	after
	phases
)

// log is what the workers have seen.
type log struct {
	mu     sync.Mutex
	now    phase
	done   [phases][]int // operations, by worker
	failed [phases][]int
	kinds  [phases]map[string]int
}

// run makes the kill test. It returns the kinds of failure that the kill led to, and
// how many bytes went over sessions after the restart.
func (t *Trial) run(tb testing.TB) (kinds []string, overSessions uint64) {
	kind := t.Kind
	if kind == nil {
		kind = Kind
	}
	var l log
	for p := range phases {
		l.done[p], l.failed[p], l.kinds[p] = make([]int, t.Workers), make([]int, t.Workers), map[string]int{}
	}
	ctx, cancel := context.WithCancel(tb.Context())
	var workers sync.WaitGroup
	defer workers.Wait() // ended by cancel
	defer cancel()
	for w := range t.Workers {
		workers.Go(func() {
			for ctx.Err() == nil {
				if err := t.Do(ctx, w); err == nil {
					l.note(w, "")
				} else if ctx.Err() == nil {
					l.note(w, kind(err))
					time.Sleep(pause)
				}
			}
		})
	}

	half := duration(tb) / 2
	time.Sleep(half)
	l.wait(tb, "worked", func() bool { return slices.Min(l.done[before]) > 0 })
	l.enter(down)
	require.NoError(tb, t.Kill())
	l.wait(tb, "noticed the kill", func() bool { return slices.Min(l.failed[down]) >= hold })
	l.forget(down) // what the process did before it was dead
	require.NoError(tb, t.Restart())
	l.wait(tb, "recovered", func() bool { return slices.Min(l.done[down]) > 0 })
	l.enter(after)
	time.Sleep(half)
	l.wait(tb, "worked again", func() bool { return slices.Min(l.done[after]) > 0 })

	overSessions = carried(t.Address)

	l.mu.Lock()
	defer l.mu.Unlock()
	tb.Logf("%d operations, then failures %v, then %d operations",
		total(l.done[before]), l.kinds[down], total(l.done[after]))
	require.Empty(tb, l.kinds[before], "failures before the kill")
	require.Empty(tb, l.kinds[after], "failures after all workers had recovered")
	return slices.Sorted(maps.Keys(l.kinds[down])), overSessions
}

// note takes down that an operation of worker w is done, or how it failed.
func (l *log) note(w int, failure string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if failure == "" {
		l.done[l.now][w]++
		return
	}
	l.failed[l.now][w]++
	l.kinds[l.now][failure]++
}

func (l *log) enter(p phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = p
}

// forget takes the operations that were done in a phase off the record.
func (l *log) forget(p phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.done[p])
}

// wait waits until all workers have come so far.
func (l *log) wait(tb testing.TB, what string, reached func() bool) {
	tb.Helper()
	require.Eventually(tb, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return reached()
	}, patience, 5*time.Millisecond, "all workers have %s: %+v", what, l)
}

// kinds are the errors of connections whose peer dies, and what kind each is.
// EPIPE is what a write gets after a reset, or after somebody else was told of
// it. ErrClosed comes from libraries that close a connection when one of its
// users has noticed.
var kinds = []struct {
	err  error
	kind string
}{
	{syscall.ECONNREFUSED, Refused},
	{syscall.ECONNRESET, Reset},
	{syscall.EPIPE, Reset},
	{io.ErrUnexpectedEOF, Ended},
	{io.EOF, Ended},
	{net.ErrClosed, Lost},
}

// Kind tells the ways apart in which a connection fails when its peer dies.
// Some libraries keep only the text of the error. Other errors are a kind each.
func Kind(err error) string {
	for _, k := range kinds {
		if errors.Is(err, k.err) || strings.HasSuffix(err.Error(), k.err.Error()) {
			return k.kind
		}
	}
	return err.Error()
}

func duration(tb testing.TB) time.Duration {
	text := os.Getenv(timeVariable)
	if text == "" {
		return defaultTime
	}
	d, err := time.ParseDuration(text)
	require.NoError(tb, err, timeVariable)
	return d
}

func total(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// FreeAddress returns an address for a server that is killed and listens there again: nobody
// takes it meanwhile.
func FreeAddress(t *testing.T) string {
	t.Helper()
	address, err := freeport.Address("127.0.0.1")
	require.NoError(t, err)
	return address
}
