//go:build amd64 || arm64

package mlx5

// What the device reads without being asked, and what it is told by, is written
// by these functions alone. All but the last two are ordered after all stores before them, as
// the device sees them.

// storeRecord stores a word of a doorbell record. The requests, or the reads
// of completions, that it tells of are before it.
//
//go:noescape
func storeRecord(record *uint32, value uint32)

// storeDoorbell is storeRecord, and then stores to a register of a page that is not cached. The
// device takes the eight bytes as one.
//
//go:noescape
func storeDoorbell(record *uint32, value uint32, register *uint64, doorbell uint64)

// storeCombined stores to a register of a page that combines stores, which it does not leave
// waiting there.
//
//go:noescape
func storeCombined(register *uint64, doorbell uint64)

// storeBlueFlame copies basic blocks of 64 bytes to a register of a page that combines stores, so
// that the device gets each of them in one piece, as a rule, and does not leave them waiting there.
//
//go:noescape
func storeBlueFlame(register, wqe *byte, blocks int)

// storeWords copies words of four bytes, at least one, to memory of the device, which combines stores, one by
// one, and does not leave them waiting there.
//
//go:noescape
func storeWords(to, from *byte, words int)

// loadWords copies words of four bytes, at least one, from memory of the device, one by one: none before what
// was read before, a completion for instance.
//
//go:noescape
func loadWords(to, from *byte, words int)
