//go:build linux

package soft

import "testing"

// PairAsStrangers makes the QPs of this process pair over sockets, as those
// of two processes do, until the end of the test.
func PairAsStrangers(t testing.TB) {
	strangers.Store(true)
	t.Cleanup(func() { strangers.Store(false) })
}
