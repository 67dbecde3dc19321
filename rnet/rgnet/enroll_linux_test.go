package rgnet

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/require"
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
