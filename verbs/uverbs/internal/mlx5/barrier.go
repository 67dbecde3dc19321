//go:build amd64 || arm64

package mlx5

// What the device reads without being asked, and what it is told by, is written
// by these two functions alone. Both are ordered after all stores before them, as
// the device sees them.

// storeRecord stores a word of a doorbell record. The requests, or the reads
// of completions, that it tells of are before it.
//
//go:noescape
func storeRecord(record *uint32, value uint32)

// storeDoorbell stores to a register of a page that is not cached. The device
// takes the eight bytes as one. What they tell of, and the record, are before
// them.
//
//go:noescape
func storeDoorbell(register *uint64, value uint64)
