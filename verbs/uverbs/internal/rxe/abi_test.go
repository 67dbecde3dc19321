package rxe

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi/abitest"
)

func TestRxeStructuresAreLaidOutAsInC(t *testing.T) {
	for _, c := range []struct {
		value   any
		size    uintptr
		offsets map[string]uintptr
	}{
		{mapping{}, 16, map[string]uintptr{"size": 8}},
		{createQPOut{}, 32, map[string]uintptr{"send": 16}},
		{createSRQOut{}, 24, nil},
		{modifySRQIn{}, 8, nil},
		{createAHOut{}, 8, nil},
		{sge{}, 16, map[string]uintptr{"length": 8, "lkey": 12}},
		{dma{}, 24, map[string]uintptr{"resid": 4, "numSGE": 12}},
		{sendWQE{}, 208, map[string]uintptr{
			"opcode": 12, "sendFlags": 16, "ex": 20, "iova": 152,
			"dma": 184,
		}},
		{recvWQE{}, 40, map[string]uintptr{"dma": 16}},
		{rdmaOp{}, 16, map[string]uintptr{"rkey": 8}},
		{atomicOp{}, 32, map[string]uintptr{"compareAdd": 8, "swap": 16, "rkey": 24}},
		{udOp{}, 16, map[string]uintptr{"remoteQKey": 4, "ahNum": 12}},
		{bindOp{}, 32, map[string]uintptr{"length": 8, "mrLKey": 16, "mwRKey": 20, "rkey": 24, "access": 28}},
		{flushOp{}, 24, map[string]uintptr{"rkey": 12, "typ": 16, "level": 17}},
	} {
		abitest.RequireLayout(t, c.value, c.size, c.offsets)
	}
}
