package siw

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi/abitest"
)

func TestSiwStructuresAreLaidOutAsInC(t *testing.T) {
	for _, c := range []struct {
		value   any
		size    uintptr
		offsets map[string]uintptr
	}{
		{contextOut{}, 8, nil},
		{regMRIn{}, 8, nil},
		{regMROut{}, 8, nil},
		{createCQOut{}, 16, map[string]uintptr{"numCQE": 4, "cqKey": 8}},
		{createQPOut{}, 32, map[string]uintptr{"numSQE": 4, "numRQE": 8, "sqKey": 16, "rqKey": 24}},
		{createSRQOut{}, 16, map[string]uintptr{"srqKey": 8}},
		{sge{}, 16, map[string]uintptr{"length": 8, "lkey": 12}},
		{sqEntry{}, 120, map[string]uintptr{"word": offsetWord, "rkey": 12, "raddr": 16, "sge": 24}},
		{rqEntry{}, 112, map[string]uintptr{"word": offsetWord, "sge": 16}},
		{cqEntry{}, 32, map[string]uintptr{"bytes": 12, "invalStag": 16, "qpID": 24}},
		{cqControl{}, 8, nil},
	} {
		abitest.RequireLayout(t, c.value, c.size, c.offsets)
	}
}

func TestWordHasTheBytesOfItsFields(t *testing.T) {
	w := packWord(0x0201, 3, 4)
	b := abi.BytesOf(&w)
	flags := uint16(0x0201)
	require.Equal(t, append(append([]byte{}, abi.BytesOf(&flags)...), 3, 4), b)

	c := struct {
		flags, opcode uint8
		status        uint16
	}{1, 2, 0x0403}
	gotFlags, gotOpcode, gotStatus := unpackCQE(*abi.ViewAt[uint32](abi.BytesOf(&c), 0))
	require.Equal(t, c.flags, gotFlags)
	require.Equal(t, c.opcode, gotOpcode)
	require.Equal(t, c.status, gotStatus)
}
