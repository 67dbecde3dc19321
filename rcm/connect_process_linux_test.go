package rcm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/stretchr/testify/require"
)

// serve accepts connections over a device and answers each number with the
// next, until standard input ends.
func serve(args []string) error {
	l, err := fabricOn(args[0]).Listen(netip.MustParseAddrPort(args[1]), rcm.ListenConfig{})
	if err != nil {
		return err
	}
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			r, err := l.Accept(context.Background())
			if err != nil {
				return // closed
			}
			connections.Go(func() {
				if err := answer(r); err != nil {
					fmt.Fprintln(os.Stderr, "serve:", err)
				}
			})
		}
	})
	cmtest.UntilStdinEnds()
	l.Close()
	connections.Wait() // ends when the dialers have gone
	return nil
}

func answer(r rcm.Request) error {
	s, err := cmtest.OpenSide(r.Device())
	if err != nil {
		return err
	}
	qp, err := s.NewQP()
	if err != nil {
		return err
	}
	c, err := r.Accept(context.Background(), qp, rcm.ConnParam{Prepare: s.Receive, PrivateData: []byte("served")})
	if err != nil {
		return err
	}
	number, _, err := s.Await()
	if err != nil {
		return err
	}
	if err := cmtest.Tell(qp, number+1); err != nil {
		return err
	}
	<-c.Disconnected() // ends with the dialer's DREQ or death
	return errors.Join(c.Disconnect(), qp.Close(), s.Close())
}

// connectAndWait dials over a device and keeps the connection until standard
// input ends.
func connectAndWait(args []string) error {
	r, err := fabricOn(args[0]).Resolve(context.Background(), netip.MustParseAddrPort(args[1]))
	if err != nil {
		return err
	}
	s, err := cmtest.OpenSide(r.Device())
	if err != nil {
		return err
	}
	qp, err := s.NewQP()
	if err != nil {
		return err
	}
	if _, err = r.Connect(context.Background(), qp, rcm.ConnParam{}); err != nil {
		return err
	}
	cmtest.UntilStdinEnds()
	return nil
}

// dial connects to addr in another process and has one number answered.
func dial(f *cmtest.Fabric, ctx context.Context, s *cmtest.Side, addr netip.AddrPort) error {
	r, err := f.Resolve(ctx, addr)
	if err != nil {
		return err
	}
	qp, err := s.NewQP()
	if err != nil {
		return errors.Join(err, r.Close())
	}
	defer qp.Close()
	c, err := r.Connect(ctx, qp, rcm.ConnParam{Prepare: s.Receive})
	if err != nil {
		return err
	}
	defer c.Disconnect()
	if got := string(c.PrivateData()); !strings.HasPrefix(got, "served") {
		return fmt.Errorf("private data %q", got)
	}
	if err := cmtest.Tell(qp, 41); err != nil {
		return err
	}
	number, _, err := s.Await()
	if err != nil {
		return err
	}
	if number != 42 {
		return fmt.Errorf("answer %d", number)
	}
	return nil
}

func TestProcessesConnect(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		cmtest.StartChild(t, 0, "serve", f.Device, addr.String())
		require.NoError(t, dial(f, cmtest.Within(t), f.NewSide(t), addr))
	})
}

func TestManyDialAtOnce(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		cmtest.StartChild(t, 0, "serve", f.Device, addr.String())
		results := make(chan error)
		dialers := 32
		if f.IWARP {
			dialers = 4 // siw of 6.1 frees its listener too soon when many come at once
		}
		for range dialers {
			s := f.NewSide(t)
			go func() {
				err := dial(f, cmtest.Within(t), s, addr)
				if f.IWARP && errors.Is(err, rcm.ErrTimeout) {
					// siw loses a handshake now and then.
					err = dial(f, cmtest.Within(t), s, addr)
				}
				results <- err
			}()
		}
		for range dialers {
			require.NoError(t, cmtest.Await(t, results)) // each ends with its answer
		}
	})
}
