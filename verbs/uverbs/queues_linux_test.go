package uverbs

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/rxe"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/siw"
)

// Queues of the drivers on memory of the test. What the kernel answers and
// writes there is as in the headers rdma/rdma_user_rxe.h and rdma/siw-abi.h.

// sharedMemory is memory by what the kernel's driver calls it.
type sharedMemory map[uint64][]byte

var errNoMapping = errors.New("no such mapping")

func (m sharedMemory) Map(offset uint64, size int, _ driver.Protection) ([]byte, error) {
	if m[offset] == nil || len(m[offset]) < size {
		return nil, errNoMapping
	}
	return m[offset][:size:size], nil
}

func (m sharedMemory) Alloc(size int) ([]byte, error) { return make([]byte, size), nil }

func (m sharedMemory) Unmap([]byte) {}

func (m sharedMemory) Free([]byte) {}

// context opens a driver whose queues are in m.
func (m sharedMemory) context(t testing.TB, d driver.Driver) driver.Context {
	t.Helper()
	ctx, err := d.Open(m, func(driver.Udata) error { return nil })
	require.NoError(t, err)
	return ctx
}

const (
	siwSQKey, siwRQKey, siwSRQKey, siwCQKey = 0x1000, 0x2000, 0x3000, 0x4000
	siwRequestSize, siwReceiveSize          = 120, 112
	siwCompletionSize                       = 32
)

func newSiwMemory(entries int) sharedMemory {
	return sharedMemory{
		siwSQKey: make([]byte, entries*siwRequestSize), siwRQKey: make([]byte, entries*siwReceiveSize),
		siwSRQKey: make([]byte, entries*siwReceiveSize), siwCQKey: make([]byte, entries*siwCompletionSize+8),
	}
}

// The answers of the kernel's siw driver.
func siwMakesCQ(out []byte, entries int) {
	binary.NativeEndian.PutUint32(out[4:], uint32(entries))
	binary.NativeEndian.PutUint64(out[8:], siwCQKey)
}

func siwMakesQP(out []byte, entries int) {
	binary.NativeEndian.PutUint32(out[4:], uint32(entries))
	binary.NativeEndian.PutUint32(out[8:], uint32(entries))
	binary.NativeEndian.PutUint64(out[16:], siwSQKey)
	binary.NativeEndian.PutUint64(out[24:], siwRQKey)
}

func siwMakesSRQ(out []byte, entries int) {
	binary.NativeEndian.PutUint32(out, uint32(entries))
	binary.NativeEndian.PutUint64(out[8:], siwSRQKey)
}

// siwCompletes writes completion i of a SEND.
func siwCompletes(m sharedMemory, i int, id uint64, qpn uint32, status uint16) {
	const valid, send = 1, 3
	cqe := m[siwCQKey][i*siwCompletionSize:]
	binary.NativeEndian.PutUint64(cqe, id)
	binary.NativeEndian.PutUint64(cqe[24:], uint64(qpn))
	cqe[8], cqe[9] = valid, send
	binary.NativeEndian.PutUint16(cqe[10:], status)
}

// siwTakes takes send request i.
func siwTakes(m sharedMemory, i int) { clear(m[siwSQKey][i*siwRequestSize+8:][:4]) }

func newSiwCQ(t testing.TB, m sharedMemory, entries int) driver.CQ {
	t.Helper()
	q, err := m.context(t, siw.Driver{}).CreateCQ(1, func(_ int, u driver.Udata) error { siwMakesCQ(u.Out, entries); return nil })
	require.NoError(t, err)
	return q
}

func newSiwQP(t testing.TB, m sharedMemory, entries int) driver.QP {
	t.Helper()
	size := verbs.QPCap{MaxSendWR: entries, MaxRecvWR: entries}
	q, err := m.context(t, siw.Driver{}).CreateQP(&driver.QPAttr{Type: verbs.QPTypeRC, Cap: size}, func(u driver.Udata) (driver.CreatedQP, error) {
		siwMakesQP(u.Out, entries)
		return driver.CreatedQP{Cap: size}, nil
	})
	require.NoError(t, err)
	return q
}

func newSiwSRQ(t testing.TB, m sharedMemory, entries int) driver.SRQ {
	t.Helper()
	q, err := m.context(t, siw.Driver{}).CreateSRQ(verbs.SRQAttr{}, func(u driver.Udata) (verbs.SRQAttr, error) {
		siwMakesSRQ(u.Out, entries)
		return verbs.SRQAttr{MaxWR: entries, MaxSGE: 1}, nil
	})
	require.NoError(t, err)
	return q
}

const rxeQueueHeader = 384

// rxeQueue makes a queue of 2^log elements and appends to answer what to map.
func (m sharedMemory) rxeQueue(answer []byte, offset uint64, log, elementLog int) []byte {
	mem := make([]byte, (rxeQueueHeader+1<<(log+elementLog)+4095)&^4095)
	binary.NativeEndian.PutUint32(mem, uint32(elementLog))
	binary.NativeEndian.PutUint32(mem[4:], 1<<log-1)
	m[offset] = mem
	answer = binary.NativeEndian.AppendUint64(answer, offset)
	// of 32 bits, and 32 that nobody reads
	return binary.NativeEndian.AppendUint64(answer, uint64(len(mem)))
}

func newRxeCQ(t testing.TB, m sharedMemory, log int) driver.CQ {
	t.Helper()
	answer := m.rxeQueue(nil, 0x1000, log, 6)
	q, err := m.context(t, rxe.Driver{}).CreateCQ(1, func(_ int, u driver.Udata) error { copy(u.Out, answer); return nil })
	require.NoError(t, err)
	return q
}

func newRxeQP(t testing.TB, m sharedMemory, log, entries int) driver.QP {
	t.Helper()
	answer := m.rxeQueue(m.rxeQueue(nil, 0x2000, log, 7), 0x3000, log, 9)
	size := verbs.QPCap{MaxSendWR: entries, MaxRecvWR: entries}
	q, err := m.context(t, rxe.Driver{}).CreateQP(&driver.QPAttr{Type: verbs.QPTypeRC, Cap: size}, func(u driver.Udata) (driver.CreatedQP, error) {
		copy(u.Out, answer)
		return driver.CreatedQP{Cap: size}, nil
	})
	require.NoError(t, err)
	return q
}

const rxeSRQOffset = 0x4000

func newRxeSRQ(t testing.TB, m sharedMemory, log, entries int) driver.SRQ {
	t.Helper()
	answer := m.rxeQueue(nil, rxeSRQOffset, log, 7)
	q, err := m.context(t, rxe.Driver{}).CreateSRQ(verbs.SRQAttr{}, func(u driver.Udata) (verbs.SRQAttr, error) {
		copy(u.Out, answer)
		return verbs.SRQAttr{MaxWR: entries, MaxSGE: 1}, nil
	})
	require.NoError(t, err)
	return q
}
