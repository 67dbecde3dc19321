package rgnet

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	gerrors "github.com/panjf2000/gnet/v2/pkg/errors"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
)

// gnet itself leaves those waiting whose connections it has not opened yet.
func TestStopEndsEnrollmentsThatAreUnderWay(t *testing.T) {
	const conns = 64
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	for round := range 30 {
		client := auto.client(t, &script{close: func(gnet.Conn, error) gnet.Action {
			time.Sleep(time.Millisecond) // one loop ends before the other
			return gnet.None
		}}, gnet.WithNumEventLoop(2))
		var enrolling sync.WaitGroup
		for range conns {
			c, err := net.Dial("tcp", ln.Addr().String())
			require.NoError(t, err)
			far, err := ln.Accept()
			require.NoError(t, err)
			defer far.Close()
			enrolling.Go(func() { client.Enroll(c) }) // ended by Stop
		}
		time.Sleep(time.Duration(round) * 10 * time.Microsecond)
		require.NoError(t, client.Stop())
		finish(t, &enrolling)
	}
}

// gnet gives it new connections still, and never opens them.
func TestAClientWhoseLoopHasEndedEnrollsNothing(t *testing.T) {
	over(t, func(t *testing.T, k carrier) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer ln.Close()
		closed := make(chan struct{}, 1)
		client := k.client(t, &script{
			traffic: func(gnet.Conn) gnet.Action { return gnet.Shutdown },
			close:   func(gnet.Conn, error) gnet.Action { closed <- struct{}{}; return gnet.None },
		})
		_, err = client.Enroll(overTCP.dial(t, ln.Addr().String()))
		require.NoError(t, err)
		accepted, err := ln.Accept()
		require.NoError(t, err)
		defer accepted.Close()
		_, err = accepted.Write([]byte("x"))
		require.NoError(t, err)
		hang.Receive(t, closed, "the loop ends")
		late := overTCP.dial(t, ln.Addr().String())
		enrolled := make(chan error, 1)
		go func() { // ended by Enroll
			_, err := client.Enroll(late)
			enrolled <- err
		}()
		require.ErrorIs(t, hang.Receive(t, enrolled, "Enroll returns"), gerrors.ErrEngineInShutdown)
		require.NoError(t, client.Stop())
	})
}
