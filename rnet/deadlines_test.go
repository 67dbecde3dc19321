package rnet

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func requireTimeout(t testing.TB, err error, op string) {
	t.Helper()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout())
	var opErr *net.OpError
	require.ErrorAs(t, err, &opErr)
	require.Equal(t, op, opErr.Op)
	require.Equal(t, "tcp", opErr.Net)
	require.NotNil(t, opErr.Source)
	require.NotNil(t, opErr.Addr)
}

func TestTimeoutsAreThoseOfPackageNet(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, _ := k.pair(t)
		require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Millisecond)))
		_, err := c.Read(make([]byte, 1))
		requireTimeout(t, err, "read")
		for err = nil; err == nil; {
			_, err = c.Write(make([]byte, 64<<10))
		}
		requireTimeout(t, err, "write")
	})
}

func TestTimedOutWriteCountsWhatArrives(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.pair(t)
		at := 0
		data := make([]byte, 300<<10)
		got := 0
		for round := range 5 {
			c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			for {
				traffic.Fill(data, 1, at)
				n, err := c.Write(data)
				at += n
				if err != nil {
					requireTimeout(t, err, "write")
					break
				}
			}
			c.SetWriteDeadline(time.Time{})
			await := hang.Start(t, func() {
				want := at - got
				if round < 4 {
					want /= 2 // leave something for the next round
				}
				buf := make([]byte, want)
				_, err := io.ReadFull(s, buf)
				assert.NoError(t, err)
				assert.NoError(t, traffic.Check(buf, 1, got))
				got += want
			})
			await()
		}
		require.Equal(t, at, got)
		c.Close()
		rest, err := io.ReadAll(s)
		require.NoError(t, err)
		require.Empty(t, rest)
	})
}

func TestDataThatArrivedIsNotReadAfterTheDeadline(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.pair(t)
		_, err := c.Write([]byte("late"))
		require.NoError(t, err)
		_, err = io.ReadFull(s, make([]byte, 1)) // the rest has arrived too
		require.NoError(t, err)
		s.SetReadDeadline(time.Now().Add(-time.Second))
		n, err := s.Read(make([]byte, 10))
		require.Zero(t, n)
		requireTimeout(t, err, "read")
		s.SetReadDeadline(time.Time{})
		buf := make([]byte, 3)
		_, err = io.ReadFull(s, buf)
		require.NoError(t, err)
		require.Equal(t, "ate", string(buf))
	})
}

// What net/http does on each request: past and then never, from another
// goroutine than the one that reads.
func TestReadsAreInterruptedAndGoOn(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.pair(t)
		for i := range 200 {
			await := hang.Start(t, func() {
				buf := make([]byte, 1)
				n, err := s.Read(buf)
				assert.Zero(t, n)
				assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
			})
			if i%4 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
			s.SetReadDeadline(time.Unix(1, 0))
			await()
			s.SetReadDeadline(time.Time{})
			_, err := c.Write([]byte{byte(i)})
			require.NoError(t, err)
			buf := make([]byte, 1)
			_, err = s.Read(buf)
			require.NoError(t, err)
			require.Equal(t, byte(i), buf[0])
		}
	})
}

func TestDeadlinesAllocateNothing(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		c, _ := k.pair(t)
		later := time.Now().Add(time.Hour)
		c.SetDeadline(later)
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			later = later.Add(time.Second)
			c.SetDeadline(later)
			c.SetReadDeadline(time.Unix(1, 0))
			c.SetReadDeadline(time.Time{})
			c.SetWriteDeadline(time.Unix(1, 0))
			c.SetWriteDeadline(time.Time{})
		}))
	})
}

func TestZeroLengthIO(t *testing.T) {
	over(t, allCarriers, func(t *testing.T, k carrier) {
		c, s := k.ends(t)
		for _, p := range [][]byte{nil, {}} {
			n, err := c.Write(p)
			require.Zero(t, n)
			require.NoError(t, err)
			n, err = s.Read(p) // does not wait, though there is nothing
			require.Zero(t, n)
			require.NoError(t, err)
		}
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		buf := make([]byte, 2)
		n, err := s.Read(buf)
		require.NoError(t, err)
		require.Equal(t, 1, n, "a write of nothing is not seen by the peer")
		s.SetReadDeadline(time.Unix(1, 0))
		_, err = s.Read(nil)
		require.NoError(t, err)
	})
}
