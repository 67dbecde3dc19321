package handshake

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
)

const (
	defaultRetryCount  = 7
	defaultRNRRetry    = 7
	defaultMinRNRTimer = 6
	defaultTimeout     = 14
)

// Complete returns p with its defaults filled in, its ranges checked and its
// read depths within what the device of qp can do.
func Complete(p rcm.ConnParam, qp *verbs.QP, maxData int) (rcm.ConnParam, error) {
	if err := CheckData(p.PrivateData, maxData); err != nil {
		return p, err
	}
	if t := qp.Attr().Type; t != verbs.QPTypeRC {
		return p, fmt.Errorf("%w: QP of type %v, Modify connects those that are not RC", verbs.ErrInvalid, t)
	}
	for _, f := range []struct {
		name  string
		value *uint8
		def   uint8
		max   uint8
	}{
		{"retry count", &p.RetryCount, defaultRetryCount, 7},
		{"RNR retry", &p.RNRRetry, defaultRNRRetry, 7},
		{"RNR timer code", &p.MinRNRTimer, defaultMinRNRTimer, 31},
		{"timeout code", &p.Timeout, defaultTimeout, 31},
	} {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value > f.max {
			return p, fmt.Errorf("%w: %s %d, at most %d", verbs.ErrInvalid, f.name, *f.value, f.max)
		}
	}
	dev := qp.PD().Context().Attr()
	if p.Access == 0 {
		p.Access = verbs.AccessRemoteWrite
		if p.ResponderResources > 0 {
			p.Access |= verbs.AccessRemoteRead
			if dev.Caps.Has(verbs.CapAtomics) {
				p.Access |= verbs.AccessRemoteAtomic
			}
		}
	}
	p.InitiatorDepth = uint8(min(int(p.InitiatorDepth), dev.MaxQPInitRdAtomic))
	p.ResponderResources = uint8(min(int(p.ResponderResources), dev.MaxQPRdAtomic))
	return p, nil
}

// ReadDepth is how many READs and atomics may be under way in each direction.
type ReadDepth struct{ Out, In uint8 }

// Agree cuts our wishes down to what the peer announced.
func Agree(p *rcm.ConnParam, peerResources, peerDepth uint8) ReadDepth {
	return ReadDepth{Out: min(p.InitiatorDepth, peerResources), In: min(p.ResponderResources, peerDepth)}
}

// ContextError is what a call returns that ctx has ended: a deadline is a
// timeout too.
func ContextError(ctx context.Context) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", rcm.ErrTimeout, err)
	}
	return err
}

// CheckData checks the length of private data.
func CheckData(private []byte, most int) error {
	if len(private) > most {
		return fmt.Errorf("%w: %d bytes of private data, at most %d", verbs.ErrInvalid, len(private), most)
	}
	return nil
}
