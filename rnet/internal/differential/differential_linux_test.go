package differential

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

var (
	runFor  = flag.Duration("differential", 9*time.Second, "how long random sequences are compared")
	oneSeed = flag.Uint64("seed", 0, "the only sequence to compare")
)

func TestMain(m *testing.M) {
	roles.Play()
	os.Exit(m.Run())
}

func TestStreamsDoAsTCPDoes(t *testing.T) {
	worlds := []struct {
		name string
		make func(*testing.T) world
	}{
		// The first ones are in a process that does not listen yet, which looks at its
		// sessions less often.
		{"accepted by another process", newTwoProcesses},
		{"dialed by another process", newSwapped},
		{"in one process", newOneProcess},
	}
	carriers := []carrier{soft, alone, dedicated}
	for _, w := range worlds {
		for _, c := range carriers {
			t.Run(w.name+"/"+string(c), func(t *testing.T) {
				b := &bench{t, w.make(t), c}
				if *oneSeed != 0 {
					b.check(*oneSeed)
					return
				}
				seed := rand.Uint64() | 1
				t.Logf("from seed %d on", seed)
				count := 0
				for end := time.Now().Add(*runFor / time.Duration(len(worlds)*len(carriers))); time.Now().Before(end); seed++ {
					b.check(seed)
					count++
				}
				t.Logf("%d sequences", count)
			})
		}
	}
}

func TestDocumentListsWhatIsAllowed(t *testing.T) {
	text, err := os.ReadFile("../../../docs/differences.md")
	require.NoError(t, err)
	var documented, allowed []string
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+) \|`).FindAllStringSubmatch(string(text), -1)[1:] {
		documented = append(documented, row[1])
	}
	for _, d := range listed {
		allowed = append(allowed, d.name)
	}
	require.Equal(t, documented, allowed)
}

// tries is how often TCP may try whether it does what the stream did.
const tries = 12

// bench compares a carrier with TCP.
type bench struct {
	t *testing.T
	world
	carrier carrier
}

// check compares one sequence, and if it differs the shortest that does.
func (b *bench) check(seed uint64) {
	q := generate(seed, b.exits())
	first := b.differs(q)
	if first == nil {
		return
	}
	again := b.differs(q)
	if again == nil {
		b.t.Errorf("seed %d differed once, and not again:\n%v\n%s", seed, q, first)
		return
	}
	end := time.Now().Add(time.Minute)
	for shorter := true; shorter; {
		shorter = false
		for i := len(q) - 1; i >= 0 && time.Now().Before(end); i-- {
			less := slices.Delete(slices.Clone(q), i, i+1)
			if d := b.differs(less); d != nil {
				q, again, shorter = less, d, true
			}
		}
	}
	b.t.Errorf("seed %d differs. Shortened:\n%v\n%s", seed, q, again)
}

// mismatch is how two runs differ.
type mismatch struct {
	runs
	at int
}

func (m *mismatch) String() string {
	var text strings.Builder
	for i, e := range m.tcp {
		fmt.Fprintf(&text, "    tcp  %s\n", e)
		if i < len(m.soft) && m.soft[i] != e || i == m.at {
			got := "nothing"
			if i < len(m.soft) {
				got = m.soft[i].String()
			}
			fmt.Fprintf(&text, "    soft %s\n", got)
		}
		if i == m.at {
			break
		}
	}
	return text.String()
}

// pauses are how long what was sent may take to be taken in where nobody tells. The next
// one is tried if the two differ, for a busy machine delays. The last one is longer than it takes
// until a process that only dials, and does not wait, looks at a session: half a second, two
// periods of the sweep of package wait.
var pauses = []time.Duration{time.Millisecond, 10 * time.Millisecond, 150 * time.Millisecond, time.Second}

// differs runs a sequence over both, and returns nil if they do the same.
func (b *bench) differs(q sequence) *mismatch {
	events, script := b.runTCP(q)
	both, at := runs{tcp: events}, 0
	for _, pause := range pauses {
		both.soft = b.runSoft(q, script, pause)
		if at = both.compare(); at < 0 {
			return nil
		}
		if b.carrier == soft {
			break
		}
	}
	for range tries {
		other, _ := b.runTCP(q)
		if (runs{other, both.soft}).compare() < 0 {
			return nil
		}
	}
	return &mismatch{both, at}
}

func (b *bench) runTCP(q sequence) ([]event, []decision) {
	p := b.connect(tcp)
	defer p.close()
	return overTCP(p, q)
}

func (b *bench) runSoft(q sequence, script []decision, pause time.Duration) []event {
	p := b.connect(b.carrier)
	defer p.close()
	return follow(p, q, script, pause)
}

func (b *bench) connect(c carrier) *pair {
	p, err := b.pair(c)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}
