package soft

import (
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// users counts what needs an object, and lets it be closed only while that is
// nothing: of one who begins to use an object and one who closes it, one
// fails. The zero value is open and unused.
type users struct{ n atomic.Int64 }

// closedBit is set in the count of an object that is closed.
const closedBit = 1 << 62

// add counts one more; ErrClosed if the object is closed.
func (u *users) add() error {
	if u.n.Add(1)&closedBit != 0 {
		u.n.Add(-1)
		return verbs.ErrClosed
	}
	return nil
}

// done takes back what add has counted.
func (u *users) done() { u.n.Add(-1) }

// close closes the object: ErrBusy if it is in use, ErrClosed if it is closed
// already.
func (u *users) close() error {
	for !u.n.CompareAndSwap(0, closedBit) {
		if n := u.n.Load(); n&closedBit != 0 {
			return verbs.ErrClosed
		} else if n != 0 {
			return verbs.ErrBusy
		}
	}
	return nil
}

// end closes the object together with what uses it.
func (u *users) end() { u.n.Or(closedBit) }

func (u *users) closed() bool { return u.n.Load()&closedBit != 0 }
