//go:build linux

package soft

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// PairAsStrangers makes the QPs of this process pair over sockets, as those
// of two processes do, until the end of the test.
func PairAsStrangers(t testing.TB) {
	strangers.Store(true)
	t.Cleanup(func() { strangers.Store(false) })
}

// RegionsKnown returns how many regions of its peer a QP keeps.
func RegionsKnown(v *verbs.QP) int {
	q := v.Driver().(*qp)
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	return len(q.remotes)
}

// MappingsLeft returns how many mappings could not be taken back yet.
func MappingsLeft() int {
	unmapLater.Lock()
	defer unmapLater.Unlock()
	return len(unmapLater.ranges)
}
