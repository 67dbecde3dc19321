package rnet

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
)

// shared listens at an address as a process does that is to be replaced, or replaces another.
func shared(t *testing.T, address string) *Listener {
	t.Helper()
	lc := &ListenConfig{Control: setting(unix.SO_REUSEPORT, 1)}
	ln, err := lc.Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln.(*Listener)
}

// Their dials have returned: over TCP they would be in the queue of a socket that lives on.
func TestStreamsThatWaitForAcceptOutliveAHandOver(t *testing.T) {
	address := closedAddress(t)
	negatives.Forget(address)
	old := shared(t, address)
	const streams = 100
	var dialed []net.Conn
	dial := func() {
		c, err := (&Dialer{Transport: Soft}).Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		_, err = c.Write([]byte{byte(len(dialed))})
		require.NoError(t, err)
		dialed = append(dialed, c)
	}
	for range streams {
		dial()
	}
	next := shared(t, address)
	require.NoError(t, old.Close())
	for i := range streams {
		c, err := old.Accept()
		require.NoError(t, err, "of %d", i)
		defer c.Close()
		var b [1]byte
		_, err = io.ReadFull(c, b[:])
		require.NoError(t, err)
		_, err = c.Write(b[:])
		require.NoError(t, err)
		_, err = io.ReadFull(dialed[b[0]], b[:])
		require.NoError(t, err)
	}
	_, err := old.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	dial()
	c, err := next.Accept()
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.ErrorIs(t, old.Close(), net.ErrClosed)
}

// Where nobody takes over they are reset, as TCP does.
func TestStreamsThatWaitForAcceptAreResetWhereNobodyTakesOver(t *testing.T) {
	ln := carrier{}.listen(t).(*Listener)
	c, err := (&Dialer{Transport: Soft}).Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	hang.Eventually(t, "the stream", func() bool { ln.mu.Lock(); defer ln.mu.Unlock(); return len(ln.queue) > 0 })
	require.NoError(t, ln.Close())
	_, err = ln.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, unix.ECONNRESET)
}

// A program may not call Accept any more. It is not waited for without end.
func TestStreamsThatNobodyAcceptsAfterAHandOverAreReset(t *testing.T) {
	address := closedAddress(t)
	negatives.Forget(address)
	old := shared(t, address)
	c, err := (&Dialer{Transport: Soft}).Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	shared(t, address)
	require.NoError(t, old.Close())
	hang.Eventually(t, "the stream", func() bool { old.mu.Lock(); defer old.mu.Unlock(); return len(old.queue) > 0 })
	old.mu.Lock()
	require.True(t, old.timer.Stop(), "nothing ends the wait")
	old.mu.Unlock()
	old.endDrain() // the timer's
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, unix.ECONNRESET)
	_, err = old.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
}

// Dials go on all the time, and listeners follow each other: each dial gets a stream, and an
// answer on it.
func TestNoDialIsLostWhenAListenerIsHandedOver(t *testing.T) {
	address := closedAddress(t)
	negatives.Forget(address)
	var serving, dialing sync.WaitGroup
	serve := func(ln *Listener) {
		serving.Go(func() {
			for {
				c, err := ln.Accept() // ended by Close
				if err != nil {
					return
				}
				serving.Go(func() {
					io.Copy(c, c) // ended by the peer
					c.Close()
				})
			}
		})
	}
	ln := shared(t, address)
	serve(ln)
	stop := make(chan struct{})
	var answers [4]atomic.Int64
	failed := make(chan error, len(answers))
	for i := range answers {
		d := &Dialer{Dedicated: i%2 == 0, HeadStart: hang.Time}
		dialing.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := echo(d, address); err != nil {
					failed <- err
					return
				}
				answers[i].Add(1)
			}
		})
	}
	for range 20 {
		// A dial outlives maxTries listeners: each dial has to come to its end.
		for i := range answers {
			before := answers[i].Load()
			hang.Eventually(t, "answers", func() bool { return answers[i].Load() > before+1 || len(failed) > 0 })
		}
		between, next := shared(t, address), shared(t, address)
		serve(between)
		serve(next)
		// The place may be on its way to the one between when that closes, too.
		closeBetween := hang.Start(t, func() { assert.NoError(t, between.Close()) })
		require.NoError(t, ln.Close())
		closeBetween()
		ln = next
	}
	close(stop)
	dialing.Wait()
	require.NoError(t, ln.Close())
	serving.Wait()
	close(failed)
	require.NoError(t, <-failed)
}

// echo has a byte sent back on a stream of its own.
func echo(d *Dialer, address string) error {
	c, err := d.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, ok := c.(*Conn); !ok {
		return fmt.Errorf("a dial went over TCP: %v", Explain(address))
	}
	c.SetDeadline(time.Now().Add(hang.Time))
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}
