package uverbs

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi/abitest"

	"github.com/stretchr/testify/require"
)

func TestSiwStructuresAreLaidOutAsInC(t *testing.T) {
	for _, c := range []struct {
		value   any
		size    uintptr
		offsets map[string]uintptr
	}{
		{siwContextOut{}, 8, nil},
		{siwRegMRIn{}, 8, nil},
		{siwRegMROut{}, 8, nil},
		{siwCreateCQOut{}, 16, map[string]uintptr{"numCQE": 4, "cqKey": 8}},
		{siwCreateQPOut{}, 32, map[string]uintptr{"numSQE": 4, "numRQE": 8, "sqKey": 16, "rqKey": 24}},
		{siwCreateSRQOut{}, 16, map[string]uintptr{"srqKey": 8}},
		{siwSGE{}, 16, map[string]uintptr{"length": 8, "lkey": 12}},
		{siwSQE{}, 120, map[string]uintptr{"word": siwOffsetWord, "rkey": 12, "raddr": 16, "sge": 24}},
		{siwRQE{}, 112, map[string]uintptr{"word": siwOffsetWord, "sge": 16}},
		{siwCQE{}, 32, map[string]uintptr{"bytes": 12, "invalStag": 16, "qpID": 24}},
		{siwCQControl{}, 8, nil},
	} {
		abitest.RequireLayout(t, c.value, c.size, c.offsets)
	}
}

func TestWordHasTheBytesOfItsFields(t *testing.T) {
	w := siwWord(0x0201, 3, 4)
	b := bytesOf(&w)
	flags := uint16(0x0201)
	require.Equal(t, append(append([]byte{}, bytesOf(&flags)...), 3, 4), b)

	c := struct {
		flags, opcode uint8
		status        uint16
	}{1, 2, 0x0403}
	gotFlags, gotOpcode, gotStatus := siwUnpackCQE(*viewAt[uint32](bytesOf(&c), 0))
	require.Equal(t, c.flags, gotFlags)
	require.Equal(t, c.opcode, gotOpcode)
	require.Equal(t, c.status, gotStatus)
}
