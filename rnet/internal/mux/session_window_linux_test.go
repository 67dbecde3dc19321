package mux

import (
	"io"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whoever takes from the session window gives it back, however its streams end.
func TestSessionWindowIsGivenBack(t *testing.T) {
	ends := map[string]func(s *Stream){
		"read":   func(s *Stream) { io.ReadFull(s, make([]byte, 20<<10)) },
		"peeked": func(s *Stream) { s.Peek(20 << 10); s.Discard(20 << 10) },
		"taken": func(s *Stream) {
			for k, err := s.Next(); err == nil; k, err = s.Next() {
				k.Recycle()
			}
		},
		"read side": func(s *Stream) { s.CloseRead() },
		"closed":    func(s *Stream) { s.Close(unlimited) },
		"reset":     func(s *Stream) { s.Close(0) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			dialed, accepted := carrier{sessionWindow: MinSessionWindow}.pair(t)
			keep, kept := open(t, dialed, accepted)
			for range 20 { // many times the session window
				c, s := open(t, dialed, accepted)
				sent := hang.Start(t, func() {
					c.Write(make([]byte, 20<<10))
					c.CloseWrite()
				})
				end(s)
				sent()
				c.Close(unlimited)
				s.Close(unlimited)
			}
			sent := hang.Start(t, func() { assert.NoError(t, writeAll(keep, 1<<20)) })
			require.NoError(t, readAll(kept, 1<<20))
			sent()
			var counted, freed uint64
			hang.Eventually(t, "nobody polls", func() bool {
				return accepted.pollLock.Do(func() {
					counted, freed = accepted.share.counted, accepted.share.freed.Load()+accepted.share.freedAtOnce
				})
			})
			require.Equal(t, counted, freed)
		})
	}
}
