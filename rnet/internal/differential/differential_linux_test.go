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
	runFor  = flag.Duration("differential", 4*time.Second, "how long random sequences are compared")
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
	}{{"in one process", newOneProcess}, {"between two processes", newTwoProcesses}}
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			if *oneSeed != 0 {
				check(t, w.make(t), *oneSeed)
				return
			}
			world, seed := w.make(t), rand.Uint64()|1
			t.Logf("from seed %d on", seed)
			count := 0
			for end := time.Now().Add(*runFor / time.Duration(len(worlds))); time.Now().Before(end); seed++ {
				check(t, world, seed)
				count++
			}
			t.Logf("%d sequences", count)
		})
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

// check compares one sequence, and if it differs the shortest that does.
func check(t *testing.T, w world, seed uint64) {
	q := generate(seed, w.exits())
	first := differs(t, w, q)
	if first == nil {
		return
	}
	again := differs(t, w, q)
	if again == nil {
		t.Errorf("seed %d differed once, and not again:\n%v\n%s", seed, q, first)
		return
	}
	end := time.Now().Add(time.Minute)
	for shorter := true; shorter; {
		shorter = false
		for i := len(q) - 1; i >= 0 && time.Now().Before(end); i-- {
			less := slices.Delete(slices.Clone(q), i, i+1)
			if d := differs(t, w, less); d != nil {
				q, again, shorter = less, d, true
			}
		}
	}
	t.Errorf("seed %d differs. Shortened:\n%v\n%s", seed, q, again)
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

// differs runs a sequence over both, and returns nil if they do the same.
func differs(t *testing.T, w world, q sequence) *mismatch {
	events, script := runTCP(t, w, q)
	got := runSoft(t, w, q, script)
	both := runs{events, got}
	at := both.compare()
	if at < 0 {
		return nil
	}
	for range tries {
		other, _ := runTCP(t, w, q)
		if (runs{other, got}).compare() < 0 {
			return nil
		}
	}
	return &mismatch{both, at}
}

func runTCP(t *testing.T, w world, q sequence) ([]event, []decision) {
	p, err := w.pair(tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	return overTCP(p, q)
}

func runSoft(t *testing.T, w world, q sequence, script []decision) []event {
	p, err := w.pair(soft)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	return follow(p, q, script)
}
