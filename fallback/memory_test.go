package fallback

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// clock is a time that tests move.
type clock struct{ at time.Time }

func newClock() *clock                       { return &clock{time.Unix(1_000_000, 0)} }
func (c *clock) now() time.Time              { return c.at }
func (c *clock) pass(d time.Duration) *clock { c.at = c.at.Add(d); return c }

func recalls(t *testing.T, m *Memory, addr string, want Reason) {
	t.Helper()
	got, ok := m.Recall(addr)
	require.True(t, ok)
	require.Equal(t, want, got)
}

func forgot(t *testing.T, m *Memory, addr string) {
	t.Helper()
	_, ok := m.Recall(addr)
	require.False(t, ok)
}

func TestFailureIsRememberedForItsTerm(t *testing.T) {
	for r := range Reason(reasonCount) {
		t.Run(r.String(), func(t *testing.T) {
			c := newClock()
			m := NewMemory(0, c.now)
			forgot(t, m, "a:1")
			m.Remember("a:1", r, m.now())
			if r.Nothing() {
				forgot(t, m, "a:1")
				m.Remember("a:1", r, m.now())
			}
			term := terms[r].first
			require.LessOrEqual(t, term, terms[r].most)
			if term > 0 {
				c.pass(term - 1)
				recalls(t, m, "a:1", r)
				forgot(t, m, "a:2")
				c.pass(1)
			}
			forgot(t, m, "a:1")
		})
	}
}

func TestWhatCostsNothingToAskIsNotRemembered(t *testing.T) {
	for _, r := range []Reason{None, Forced, PeerDied, UnsupportedOS, Admission, Remembered, Callback, Reason(200)} {
		m := NewMemory(0, nil)
		m.Remember("a:1", r, m.now())
		forgot(t, m, "a:1")
	}
}

// The first dial may have come between the two listeners of a server that starts,
// and so may others that had begun by then.
func TestThatThereIsNothingIsRememberedWhenItIsFoundTwice(t *testing.T) {
	for _, r := range []Reason{NotLocal, NoListener, NoDevice} {
		c := newClock()
		m := NewMemory(0, c.now)
		begun := c.at
		c.pass(time.Millisecond)
		m.Remember("a:1", r, begun)
		forgot(t, m, "a:1")
		c.pass(time.Millisecond)
		m.Remember("a:1", r, begun)
		forgot(t, m, "a:1")
		m.Remember("a:1", r, c.at)
		recalls(t, m, "a:1", r)
		c.pass(nothingTime)
		forgot(t, m, "a:1")
		m.Remember("a:1", r, c.at)
		recalls(t, m, "a:1", r)
		c.pass(time.Second)
		m.Remember("a:1", r, c.at)
		forgot(t, m, "a:1")
	}
}

func TestTermsDoubleUpToALimit(t *testing.T) {
	c := newClock()
	m := NewMemory(0, c.now)
	for _, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		want *= time.Second
		m.Remember("a:1", HandshakeTimeout, m.now())
		c.pass(want - 1)
		recalls(t, m, "a:1", HandshakeTimeout)
		c.pass(1)
		forgot(t, m, "a:1")
	}
}

// A dozen dials may wait for one set-up, and each of them tells that it has failed.
func TestWhatDialsFindAtTheSameTimeIsOneFailure(t *testing.T) {
	for r := range Reason(reasonCount) {
		if terms[r].first == 0 || r.Nothing() {
			continue
		}
		t.Run(r.String(), func(t *testing.T) {
			c := newClock()
			m := NewMemory(0, c.now)
			begun := c.at
			c.pass(time.Second)
			for range 12 {
				m.Remember("a:1", r, begun)
			}
			c.pass(terms[r].first - 1)
			recalls(t, m, "a:1", r)
			c.pass(1)
			forgot(t, m, "a:1")
		})
	}
}

func TestTermsStartAgain(t *testing.T) {
	for name, between := range map[string]func(m *Memory, c *clock){
		"after success":            func(m *Memory, _ *clock) { m.Forget("a:1") },
		"after another failure":    func(m *Memory, _ *clock) { m.Remember("a:1", NoMemory, m.now()) },
		"when it was long ago":     func(_ *Memory, c *clock) { c.pass(40 * time.Second) },
		"after success, then long": func(m *Memory, c *clock) { m.Forget("a:1"); c.pass(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			m := NewMemory(0, c.now)
			m.Remember("a:1", HandshakeTimeout, m.now())
			m.Remember("a:1", HandshakeTimeout, m.now())
			between(m, c)
			m.Remember("a:1", HandshakeTimeout, m.now())
			c.pass(10*time.Second - 1)
			recalls(t, m, "a:1", HandshakeTimeout)
			c.pass(1)
			forgot(t, m, "a:1")
		})
	}
}

func TestForgetMakesTheNextDialTry(t *testing.T) {
	m := NewMemory(0, nil)
	m.Forget("a:1")
	m.Remember("a:1", Permission, m.now())
	m.Remember("a:2", Permission, m.now())
	m.Forget("a:1")
	forgot(t, m, "a:1")
	recalls(t, m, "a:2", Permission)
}

func TestMemoryIsBounded(t *testing.T) {
	c := newClock()
	m := NewMemory(100, c.now)
	for i := range 10_000 {
		m.Remember(fmt.Sprintf("a:%d", i), HandshakeTimeout, m.now())
		c.pass(time.Millisecond)
		require.LessOrEqual(t, len(m.entries), 100)
	}
	recalls(t, m, "a:9999", HandshakeTimeout)
	forgot(t, m, "a:0")
}

func TestMemoryIsSharedByManyDials(t *testing.T) {
	m := NewMemory(8, nil)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				addr := fmt.Sprintf("a:%d", (g+i)%16)
				switch i % 3 {
				case 0:
					m.Remember(addr, NoMemory, m.now())
				case 1:
					if r, ok := m.Recall(addr); ok && r != NoMemory {
						t.Errorf("recalled %v", r)
					}
				case 2:
					m.Forget(addr)
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, len(m.entries), 8)
}

func BenchmarkRecallOfNothing(b *testing.B) {
	m := NewMemory(0, nil)
	b.ReportAllocs()
	for b.Loop() {
		m.Recall("10.0.0.1:9000")
	}
}

func BenchmarkRecall(b *testing.B) {
	m := NewMemory(0, nil)
	for i := range MemoryLimit {
		m.Remember(fmt.Sprintf("10.0.0.1:%d", 9000+i), HandshakeTimeout, m.now())
	}
	b.ReportAllocs()
	for b.Loop() {
		m.Recall("10.0.0.1:9000")
	}
}
