package prefetch

import "testing"

func TestAnyAddressWillDo(t *testing.T) {
	for _, addr := range []uintptr{0, 1, ^uintptr(0), ^uintptr(0) >> 1} {
		ForWrite(addr)
		ForRead(addr)
	}
}
