package rnet

import (
	"fmt"
	"io"
	"math/rand/v2"
)

// randomBytes returns n bytes that depend on seed alone.
func randomBytes(seed uint64, n int) []byte {
	p := make([]byte, n)
	fillPattern(p, seed, 0)
	return p
}

// fillPattern fills p with what stands at position at of the stream that seed
// names. Any piece of it can be made and checked by itself.
func fillPattern(p []byte, seed uint64, at int) {
	for i := range p {
		p[i] = patternByte(seed, at+i)
	}
}

func patternByte(seed uint64, at int) byte {
	x := (uint64(at) + 1) * 0x9e3779b97f4a7c15 // not periodic within any ring
	x ^= seed * 0xbf58476d1ce4e5b9
	x ^= x >> 29
	x *= 0x94d049bb133111eb
	return byte(x >> 56)
}

// checkPattern is the inverse of fillPattern.
func checkPattern(p []byte, seed uint64, at int) error {
	for i, b := range p {
		if want := patternByte(seed, at+i); b != want {
			return fmt.Errorf("byte %d of stream %d is %#x, want %#x", at+i, seed, b, want)
		}
	}
	return nil
}

// writePattern writes n bytes of a stream's pattern in pieces of random length
// up to most.
func writePattern(w io.Writer, rnd *rand.Rand, seed uint64, n, most int) error {
	buf := make([]byte, min(n, most))
	for at := 0; at < n; {
		p := buf[:min(n-at, 1+rnd.IntN(most))]
		fillPattern(p, seed, at)
		m, err := w.Write(p)
		if err != nil {
			return fmt.Errorf("write at %d: %w", at, err)
		}
		at += m
	}
	return nil
}

// readPattern reads and checks n bytes of a stream's pattern.
func readPattern(r io.Reader, rnd *rand.Rand, seed uint64, n, most int) error {
	buf := make([]byte, most)
	for at := 0; at < n; {
		m, err := r.Read(buf[:min(n-at, 1+rnd.IntN(most))])
		if err := checkPattern(buf[:m], seed, at); err != nil {
			return err
		}
		at += m
		if err != nil && at < n {
			return fmt.Errorf("read at %d of %d: %w", at, n, err)
		}
	}
	return nil
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }
