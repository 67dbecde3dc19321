package uverbs

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// Queues of the drivers on memory of the test. What the kernel answers and
// writes there is as in the headers rdma/rdma_user_rxe.h and rdma/siw-abi.h.

// sharedMemory is memory by what the kernel's driver calls it.
type sharedMemory map[uint64][]byte

var errNoMapping = errors.New("no such mapping")

func (m sharedMemory) mmap(offset uint64, size int, _ protection) ([]byte, error) {
	if m[offset] == nil || len(m[offset]) < size {
		return nil, errNoMapping
	}
	return m[offset][:size:size], nil
}

func (m sharedMemory) alloc(size int) ([]byte, error) { return make([]byte, size), nil }

func (m sharedMemory) unmap([]byte) {}

// context opens a driver whose queues are in m.
func (m sharedMemory) context(t testing.TB, d driver) driverContext {
	t.Helper()
	ctx, err := d.open(m, func(extra) error { return nil })
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

func newSiwCQ(t testing.TB, m sharedMemory, entries int) cqQueue {
	t.Helper()
	q, err := m.context(t, siw{}).createCQ(func(e extra) error { siwMakesCQ(e.out, entries); return nil })
	require.NoError(t, err)
	return q
}

func newSiwQP(t testing.TB, m sharedMemory, entries int) qpQueue {
	t.Helper()
	size := verbs.QPCap{MaxSendWR: entries, MaxRecvWR: entries}
	q, err := m.context(t, siw{}).createQP(&qpAttr{typ: verbs.QPTypeRC, cap: size}, func(e extra) (madeQP, error) {
		siwMakesQP(e.out, entries)
		return madeQP{cap: size}, nil
	})
	require.NoError(t, err)
	return q
}

func newSiwSRQ(t testing.TB, m sharedMemory, entries int) srqQueue {
	t.Helper()
	q, err := m.context(t, siw{}).createSRQ(func(e extra) (verbs.SRQAttr, error) {
		siwMakesSRQ(e.out, entries)
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
	return binary.NativeEndian.AppendUint64(answer, uint64(len(mem))) // of 32 bits, and 32 that nobody reads
}

func newRxeCQ(t testing.TB, m sharedMemory, log int) cqQueue {
	t.Helper()
	answer := m.rxeQueue(nil, 0x1000, log, 6)
	q, err := m.context(t, rxe{}).createCQ(func(e extra) error { copy(e.out, answer); return nil })
	require.NoError(t, err)
	return q
}

func newRxeQP(t testing.TB, m sharedMemory, log, entries int) qpQueue {
	t.Helper()
	answer := m.rxeQueue(m.rxeQueue(nil, 0x2000, log, 7), 0x3000, log, 9)
	size := verbs.QPCap{MaxSendWR: entries, MaxRecvWR: entries}
	q, err := m.context(t, rxe{}).createQP(&qpAttr{typ: verbs.QPTypeRC, cap: size}, func(e extra) (madeQP, error) {
		copy(e.out, answer)
		return madeQP{cap: size}, nil
	})
	require.NoError(t, err)
	return q
}

const rxeSRQOffset = 0x4000

func newRxeSRQ(t testing.TB, m sharedMemory, log, entries int) srqQueue {
	t.Helper()
	answer := m.rxeQueue(nil, rxeSRQOffset, log, 7)
	q, err := m.context(t, rxe{}).createSRQ(func(e extra) (verbs.SRQAttr, error) {
		copy(e.out, answer)
		return verbs.SRQAttr{MaxWR: entries, MaxSGE: 1}, nil
	})
	require.NoError(t, err)
	return q
}
