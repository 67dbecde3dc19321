//go:build amd64 || arm64

// Package prefetch asks for cache lines before they are needed, so that the time in which
// another processor hands them over passes while something else is done. Any address will do: one
// at which nothing is mapped changes nothing.
package prefetch

// ForWrite asks for the cache line at addr and the one behind it, to write to them.
//
//go:noescape
func ForWrite(addr uintptr)

// ForRead asks for the cache line at addr, to read it.
//
//go:noescape
func ForRead(addr uintptr)
