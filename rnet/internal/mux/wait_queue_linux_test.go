package mux

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/stretchr/testify/assert"
)

// writeAll writes n bytes in pieces of random length.
func writeAll(st *Stream, n int) error {
	rnd := newRand(uint64(st.id))
	for at := 0; at < n; {
		m, err := st.Write(patternOf(st.id, at, min(n-at, 1+rnd.IntN(8<<10))))
		if at += m; err != nil {
			return err
		}
	}
	return nil
}

// readAll reads what writeAll has written.
func readAll(st *Stream, n int) error {
	rnd := newRand(uint64(st.id))
	buf := make([]byte, 8<<10)
	for at := 0; at < n; {
		m, err := st.Read(buf[:min(n-at, 1+rnd.IntN(len(buf)))])
		if !bytes.Equal(buf[:m], patternOf(st.id, at, m)) {
			return fmt.Errorf("stream %#x is wrong from %d on", st.id, at)
		}
		if at += m; err != nil && at < n {
			return err
		}
	}
	return nil
}

// Writers leave the queue in every way there is, also when they were woken: the
// others get through.
func TestWritersThatGiveUpLetTheOthersThrough(t *testing.T) {
	const streams, each = 120, 48 << 10
	ends := []func(c, s *Stream){
		func(c, s *Stream) { c.Close(unlimited) },
		func(c, s *Stream) { c.CloseWrite() },
		func(c, s *Stream) { c.SetWriteDeadline(time.Now()) },
		func(c, s *Stream) { s.Close(0) },
		func(c, s *Stream) { s.Close(unlimited) },
	}
	dialed, accepted := overNarrow.pair(t)
	var work sync.WaitGroup
	for i := range streams {
		c, s := open(t, dialed, accepted)
		seed := uint64(i)
		if i%2 == 0 {
			work.Go(func() { assert.NoError(t, writeAll(c, each)) })
			work.Go(func() { assert.NoError(t, readAll(s, each)) })
			continue
		}
		work.Go(func() {
			assert.Error(t, writeAll(c, 1<<30))
			c.Close(unlimited)
		})
		work.Go(func() { io.Copy(io.Discard, s) }) // ended by the end of the stream
		work.Go(func() {
			time.Sleep(time.Duration(newRand(seed).IntN(20_000)) * time.Microsecond)
			ends[i/2%len(ends)](c, s)
		})
	}
	hang.Start(t, work.Wait)()
	nobodyIsAwake(t, dialed.Mux)
}
