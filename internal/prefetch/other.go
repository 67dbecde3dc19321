//go:build !amd64 && !arm64

// Package prefetch does nothing on this processor.
package prefetch

// ForWrite does nothing here.
func ForWrite(addr uintptr) {}

// ForRead does nothing here.
func ForRead(addr uintptr) {}
