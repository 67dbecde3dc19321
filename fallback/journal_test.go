package fallback

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestJournalKeepsTheLastDecisionsNewestFirst(t *testing.T) {
	var j Journal
	c := newClock()
	require.Nil(t, j.Last("a:1"))
	var all []Decision
	for i := range 2*JournalDepth + 3 {
		d := Decision{Addr: "a:1", Transport: TCP, Reason: []Reason{NoListener, PeerDied}[i%2], At: c.pass(time.Second).now(), Took: time.Duration(i)}
		j.Record(d)
		all = append([]Decision{d}, all...)
		require.Equal(t, all[:min(len(all), JournalDepth)], j.Last("a:1"))
	}
	require.Nil(t, j.Last("a:2"))
}

func TestRepetitionsAreCountedNotKept(t *testing.T) {
	var j Journal
	c := newClock()
	first := Decision{Addr: "a:1", Transport: TCP, Reason: NoListener, At: c.now()}
	j.Record(first)
	for range 1000 {
		j.Record(Decision{Addr: "a:1", Transport: Soft, At: c.pass(time.Second).now(), Took: time.Microsecond, Repeats: 77})
	}
	last := Decision{Addr: "a:1", Transport: Soft, At: c.pass(time.Second).now(), Took: 5, Err: errors.New("which one")}
	j.Record(last)

	last.Repeats = 1000
	require.Equal(t, []Decision{last, first}, j.Last("a:1"))
	require.Equal(t, []Count{{Soft, None, 1001}, {TCP, NoListener, 1}}, j.Counts())
}

// Both say that nobody listens for streams: one connected without, one was refused.
func TestAFailureIsNoRepetitionOfAConnection(t *testing.T) {
	var j Journal
	connected := Decision{Addr: "a:1", Transport: TCP, Reason: NoListener, Err: errors.New("no streams")}
	failed := Decision{Addr: "a:1", Transport: TCP, Reason: NoListener, Err: errors.New("refused"), Failed: true}
	j.Record(connected)
	j.Record(failed)
	require.Equal(t, []Decision{failed, connected}, j.Last("a:1"))
}

func TestRepetitionWithoutATimeLeavesTheLastOne(t *testing.T) {
	var j Journal
	d := Decision{Addr: "a:1", Transport: Soft, At: newClock().now(), Took: time.Millisecond}
	j.Record(d)
	j.Record(Decision{Addr: "a:1", Transport: Soft})
	d.Repeats = 1
	require.Equal(t, []Decision{d}, j.Last("a:1"))
}

func TestAddressInUseIsNotForgotten(t *testing.T) {
	var j Journal
	for i := range 10 * JournalAddrs {
		j.Record(Decision{Addr: "in use", Transport: Soft})
		j.Record(Decision{Addr: fmt.Sprintf("a:%d", i), Transport: TCP})
	}
	require.Equal(t, 10*JournalAddrs-1, j.Last("in use")[0].Repeats)
}

func TestDecisionsOfOneAddressDoNotDisturbAnother(t *testing.T) {
	var j Journal
	for range 3 {
		j.Record(Decision{Addr: "a:1", Transport: Soft})
		j.Record(Decision{Addr: "a:2", Transport: TCP, Reason: NotLocal})
	}
	require.Len(t, j.Last("a:1"), 1)
	require.Equal(t, 2, j.Last("a:2")[0].Repeats)
	require.ElementsMatch(t, []string{"a:1", "a:2"}, addresses(&j))
}

// addresses are those that the journal has decisions of.
func addresses(j *Journal) (list []string) {
	for i := range j.shards {
		s := &j.shards[i]
		s.mu.Lock()
		for addr := range s.addrs {
			list = append(list, addr)
		}
		s.mu.Unlock()
	}
	return list
}

func TestJournalForgetsTheAddressesOfLongAgo(t *testing.T) {
	var j Journal
	c := newClock()
	for i := range 20 * JournalAddrs {
		addr := fmt.Sprintf("a:%d", i)
		j.Record(Decision{Addr: addr, Transport: TCP, At: c.pass(time.Second).now()})
		require.Len(t, j.Last(addr), 1, "nothing is left of who was there before")
	}
	require.LessOrEqual(t, len(addresses(&j)), JournalAddrs)
	require.Nil(t, j.Last("a:0"))
	require.Equal(t, []Count{{TCP, None, 20 * JournalAddrs}}, j.Counts(), "the counts go on")
}

func TestJournalTakesNumbersThatItDoesNotKnow(t *testing.T) {
	var j Journal
	j.Record(Decision{Addr: "a:1", Transport: 200, Reason: 200})
	require.Equal(t, []Count{{Auto, Other, 1}}, j.Counts())
}

func TestJournalIsSharedByManyDials(t *testing.T) {
	var j Journal
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				addr := fmt.Sprintf("a:%d", i%5)
				j.Record(Decision{Addr: addr, Transport: Transport(g % 4), Reason: Reason(i % 3)})
				if n := len(j.Last(addr)); n < 1 || n > JournalDepth {
					t.Errorf("%d decisions", n)
				}
				j.Counts()
			}
		})
	}
	wg.Wait()
	var sum uint64
	for _, c := range j.Counts() {
		sum += c.N
	}
	require.EqualValues(t, 8*2000, sum)
	sum = 0
	for _, addr := range addresses(&j) {
		require.Len(t, j.Last(addr), JournalDepth)
	}
	require.Len(t, addresses(&j), 5)
}

func BenchmarkRecordTheUsual(b *testing.B) {
	var j Journal
	for i := range JournalAddrs {
		j.Record(Decision{Addr: fmt.Sprintf("10.0.0.1:%d", 9000+i), Transport: Soft})
	}
	d := Decision{Addr: "10.0.0.1:9000", Transport: Soft, At: time.Now(), Took: time.Microsecond}
	b.ReportAllocs()
	for b.Loop() {
		j.Record(d)
	}
}

func BenchmarkRecordSomethingElse(b *testing.B) {
	var j Journal
	d := Decision{Addr: "10.0.0.1:9000", Transport: Soft, At: time.Now(), Took: time.Microsecond}
	b.ReportAllocs()
	for b.Loop() {
		d.Reason ^= 1
		j.Record(d)
	}
}

func BenchmarkRecordFromAllCPUs(b *testing.B) {
	var j Journal
	d := Decision{Addr: "10.0.0.1:9000", Transport: Soft, At: time.Now(), Took: time.Microsecond}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			j.Record(d)
		}
	})
}
