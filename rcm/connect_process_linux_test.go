package rcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// serve accepts connections over a device and answers each number with the
// next, until standard input ends.
func serve(args []string) error {
	l, err := fabricOn(args[0]).Listen(netip.MustParseAddrPort(args[1]), ListenConfig{})
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
	untilStdinEnds()
	l.Close()
	connections.Wait() // ends when the dialers have gone
	return nil
}

func answer(r Request) error {
	s, err := openSide(r.Device())
	if err != nil {
		return err
	}
	qp, err := s.newQP()
	if err != nil {
		return err
	}
	c, err := r.Accept(context.Background(), qp, ConnParam{Prepare: s.receive, PrivateData: []byte("served")})
	if err != nil {
		return err
	}
	number, _, err := s.hear()
	if err != nil {
		return err
	}
	if err := tell(qp, number+1); err != nil {
		return err
	}
	<-c.Disconnected() // ends with the dialer's DREQ or death
	return errors.Join(c.Disconnect(), qp.Close(), s.close())
}

// connectAndWait dials over a device and keeps the connection until standard
// input ends.
func connectAndWait(args []string) error {
	r, err := fabricOn(args[0]).Resolve(context.Background(), netip.MustParseAddrPort(args[1]))
	if err != nil {
		return err
	}
	s, err := openSide(r.Device())
	if err != nil {
		return err
	}
	qp, err := s.newQP()
	if err != nil {
		return err
	}
	if _, err = r.Connect(context.Background(), qp, ConnParam{}); err != nil {
		return err
	}
	untilStdinEnds()
	return nil
}

// dial connects to addr in another process and has one number answered.
func (f *testFabric) dial(ctx context.Context, s *side, addr netip.AddrPort) error {
	r, err := f.Resolve(ctx, addr)
	if err != nil {
		return err
	}
	qp, err := s.newQP()
	if err != nil {
		return errors.Join(err, r.Close())
	}
	defer qp.Close()
	c, err := r.Connect(ctx, qp, ConnParam{Prepare: s.receive})
	if err != nil {
		return err
	}
	defer c.Disconnect()
	if got := string(c.PrivateData()); !strings.HasPrefix(got, "served") {
		return fmt.Errorf("private data %q", got)
	}
	if err := tell(qp, 41); err != nil {
		return err
	}
	number, _, err := s.hear()
	if err != nil {
		return err
	}
	if number != 42 {
		return fmt.Errorf("answer %d", number)
	}
	return nil
}

func TestProcessesConnect(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		startChild(t, 0, "serve", f.device, addr.String())
		require.NoError(t, f.dial(within(t), f.newSide(t), addr))
	})
}

func TestManyDialAtOnce(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		startChild(t, 0, "serve", f.device, addr.String())
		results := make(chan error)
		dialers := 32
		if f.iwarp {
			dialers = 4 // siw of 6.1 frees its listener too soon when many come at once
		}
		for range dialers {
			s := f.newSide(t)
			go func() {
				err := f.dial(within(t), s, addr)
				if f.iwarp && errors.Is(err, ErrTimeout) {
					// siw loses a handshake now and then.
					err = f.dial(within(t), s, addr)
				}
				results <- err
			}()
		}
		for range dialers {
			require.NoError(t, await(t, results)) // each ends with its answer
		}
	})
}
