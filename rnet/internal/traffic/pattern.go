// Package traffic is what tests send over connections: patterns whose every byte is checked,
// exchanges of them both ways, ends that behave as the other end asks, and those who wait for an
// end that dies.
package traffic

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
)

// Bytes returns n bytes that depend on seed alone.
func Bytes(seed uint64, n int) []byte {
	p := make([]byte, n)
	Fill(p, seed, 0)
	return p
}

// patternPeriod is how long a stream's pattern is: a prime, so that it has
// nothing in common with rings, windows and pieces.
const patternPeriod = 65521

// pattern holds the bytes of all streams, twice in a row: each begins at
// another place.
var pattern = func() (p [2 * patternPeriod]byte) {
	rnd := NewRand(1)
	for i := range patternPeriod {
		p[i] = byte(rnd.Uint32())
	}
	copy(p[patternPeriod:], p[:patternPeriod])
	return p
}()

// patternFrom returns the next period of what stands at position at of the
// stream that seed names.
func patternFrom(seed uint64, at int) []byte {
	from := (seed*0x9e3779b97f4a7c15>>20 + uint64(at)) % patternPeriod
	return pattern[from : from+patternPeriod]
}

// Fill fills p with what stands at position at of a stream. Any piece
// of it can be made and checked by itself.
func Fill(p []byte, seed uint64, at int) {
	for len(p) > 0 {
		n := copy(p, patternFrom(seed, at))
		p, at = p[n:], at+n
	}
}

// Check is the inverse of Fill.
func Check(p []byte, seed uint64, at int) error {
	for len(p) > 0 {
		want := patternFrom(seed, at)
		n := min(len(p), len(want))
		if !bytes.Equal(p[:n], want[:n]) {
			for i := range n {
				if p[i] != want[i] {
					return fmt.Errorf("byte %d of stream %d is %#x, want %#x", at+i, seed, p[i], want[i])
				}
			}
		}
		p, at = p[n:], at+n
	}
	return nil
}

// Write writes n bytes of a stream's pattern in pieces of random length
// up to most.
func Write(w io.Writer, rnd *rand.Rand, seed uint64, n, most int) error {
	buf := make([]byte, min(n, most))
	for at := 0; at < n; {
		p := buf[:min(n-at, 1+rnd.IntN(most))]
		Fill(p, seed, at)
		m, err := w.Write(p)
		if err != nil {
			return fmt.Errorf("write at %d: %w", at, err)
		}
		at += m
	}
	return nil
}

// Read reads and checks n bytes of a stream's pattern.
func Read(r io.Reader, rnd *rand.Rand, seed uint64, n, most int) error {
	buf := make([]byte, most)
	for at := 0; at < n; {
		m, err := r.Read(buf[:min(n-at, 1+rnd.IntN(most))])
		if err := Check(buf[:m], seed, at); err != nil {
			return err
		}
		at += m
		if err != nil && at < n {
			return fmt.Errorf("read at %d of %d: %w", at, n, err)
		}
	}
	return nil
}

// NewRand returns a source of numbers that depend on seed alone.
func NewRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }
