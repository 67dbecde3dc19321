package link

import (
	"errors"
	"sync/atomic"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// memory is what registered memory lives in. It keeps the device open until the last of
// its users is gone: the link, and each Buffer.
type memory struct {
	device  *verbs.Context
	release func()
	pd      *verbs.PD
	users   atomic.Int32
}

// free takes a user away.
func (m *memory) free() {
	if m.users.Add(-1) > 0 {
		return
	}
	if m.pd != nil {
		m.pd.Close()
	}
	m.release()
}

// allocUpTo registers size bytes, a power of two, or where memory is short the
// half of it, and so on down to MinRing.
func allocUpTo(pd *verbs.PD, size uint32, access verbs.Access, opt verbs.MROptions) (*verbs.MR, error) {
	for {
		mr, err := pd.AllocMR(int(size), access, opt)
		if err == nil || !isShort(err) || size/2 < MinRing {
			return mr, err
		}
		size /= 2
	}
}

// isShort reports whether an error may be due to the size of what was asked.
func isShort(err error) bool {
	return errors.Is(err, syscall.ENOMEM) || errors.Is(err, verbs.ErrPinLimit)
}
