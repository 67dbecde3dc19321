//go:build amd64 || arm64

package mlx5

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi/abitest"
)

// The figures are those that a C compiler makes of rdma/mlx5-abi.h.
func TestStructuresAreLaidOutAsInC(t *testing.T) {
	for _, c := range []struct {
		value   any
		size    uintptr
		offsets map[string]uintptr
	}{
		{contextIn{}, 32, map[string]uintptr{"numLowLatencyBfregs": 4, "maxCQEVersion": 16, "libCaps": 24}},
		{contextOut{}, 72, map[string]uintptr{
			"bfRegSize": 4, "totBfregs": 8, "maxSendWQE": 16, "maxRecvWQE": 18, "maxSendBlocks": 20, "maxRecvWR": 24,
			"compMask": 36, "clockInfoVersions": 47, "coreClockOffset": 48, "logUARSize": 56, "uarsPerPage": 60, "dumpFillMKey": 68,
		}},
		{clockInfo{}, 56, map[string]uintptr{"nsec": 8, "cycles": 16, "mult": 32, "shift": 36, "mask": 40}},
		{allocPDOut{}, 4, nil},
		{createCQIn{}, 32, map[string]uintptr{"record": 8, "cqeSize": 16}},
		{createCQOut{}, 8, nil},
		{resizeCQIn{}, 16, map[string]uintptr{"cqeSize": 8}},
		{createQPIn{}, 48, map[string]uintptr{"record": 8, "sendSize": 16, "recvSize": 20, "recvShift": 24, "index": 32}},
		{createQPOut{}, 40, map[string]uintptr{"bfregIndex": 0}},
		{createSRQIn{}, 32, map[string]uintptr{"record": 8, "index": 24}},
		{createSRQOut{}, 8, nil},
		{createAHOut{}, 16, map[string]uintptr{"responseLength": 0, "dmac": 4}},
	} {
		abitest.RequireLayout(t, c.value, c.size, c.offsets)
	}
}
