package harness

import (
	"encoding/binary"
	"fmt"
	"time"
)

// kind is what the two processes do with their connections.
type kind string

const (
	roundTrips kind = "round trips" // send a message, wait for the same message back
	oneWay     kind = "one way"     // send messages without waiting, one answer at the end
	openings   kind = "openings"    // dial, one round trip, close
	idling     kind = "idling"      // hold connections that carry nothing
	sessions   kind = "sessions"    // the same, one connection of each of many client processes
	cacheLine  kind = "cache line"  // pass a cache line to and fro
	bareRing   kind = "bare ring"   // copy into a shared ring and out of it
)

// workload is one thing to measure: everything that the serving and the
// dialing process need to know about it. It is handed to both as JSON.
type workload struct {
	Kind     kind          `json:"kind"`
	Size     int           `json:"size"`     // bytes in a message, at least minMessage
	Conns    int           `json:"conns"`    // connections, or dials in flight for openings
	Duration time.Duration `json:"duration"` // measured part of a round
	Warmup   time.Duration `json:"warmup"`   // same work before it, not measured
	// messages/s over all connections and client processes for an open loop, 0 for a closed one
	Rate    float64 `json:"rate,omitempty"`
	Profile string  `json:"profile,omitempty"` // RNET_PROFILE of both processes, "" leaves it as it is
	// gnet event loops on each side that do the work, 0 for a goroutine for each connection
	Loops int `json:"loops,omitempty"`

	// whose calls are the round trips, Conns at a time; "" for messages on plain connections
	Program string `json:"program,omitempty"`
	Clients int    `json:"clients,omitempty"` // client processes, 0 for one; each has Conns
	Client  int    `json:"client,omitempty"`  // which of them this process is, from 0
	// the server passes everything on, by TCP, to a third process that answers
	Hop   bool          `json:"hop,omitempty"`
	Local bool          `json:"local,omitempty"` // one process has both ends
	Think time.Duration `json:"think,omitempty"` // the client computes so long after each answer
	// each process computes beside the work, in a goroutine for each processor
	Busy       bool `json:"busy,omitempty"`
	Neighbours int  `json:"neighbours,omitempty"` // processes that compute beside the work
}

// A message is stamped with its number, so that a lost, repeated, torn or
// misdelivered one is noticed. The number holds the connection's id above
// sequenceBits and a count from 0 below, and stands at the start of the
// message, at each following stampStride bytes (plus the offset, so that
// blocks which change places are noticed too), and in the last eight bytes.
const (
	minMessage   = 16
	stampStride  = 4096
	sequenceBits = 40
	connMask     = 1<<23 - 1
	lastMessage  = 1 << 63 // flag in the first stamp of a one-way burst's last message
)

// clients is the number of client processes.
func (w workload) clients() int { return max(w.Clients, 1) }

// holds reports whether connections are to be there and carry nothing.
func (w workload) holds() bool { return w.Kind == idling || w.Kind == sessions }

// floor reports whether it is no connection that is measured, but the memory
// that two processes share.
func (w workload) floor() bool { return w.Kind == cacheLine || w.Kind == bareRing }

// firstNumber is the number of a connection's first message.
func firstNumber(conn int) uint64 { return uint64(conn&connMask) << sequenceBits }

// stamp writes number all over message; flags go into the first stamp alone.
func stamp(message []byte, number, flags uint64) {
	for at := 0; at+16 <= len(message); at += stampStride {
		binary.LittleEndian.PutUint64(message[at:], number+uint64(at))
	}
	binary.LittleEndian.PutUint64(message[len(message)-8:], ^number)
	binary.LittleEndian.PutUint64(message, number|flags)
}

// number reads the first stamp of a message: its number and its flags.
func number(message []byte) (number, flags uint64) {
	first := binary.LittleEndian.Uint64(message)
	return first &^ lastMessage, first & lastMessage
}

// check reports the first stamp of message that is not as stamp wrote it.
func check(message []byte, want uint64) error {
	if got, _ := number(message); got != want {
		return fmt.Errorf("message %#x arrived where %#x was due", got, want)
	}
	for at := stampStride; at+16 <= len(message); at += stampStride {
		if got := binary.LittleEndian.Uint64(message[at:]); got != want+uint64(at) {
			return fmt.Errorf("message %#x is wrong at byte %d: %#x", want, at, got)
		}
	}
	if got := binary.LittleEndian.Uint64(message[len(message)-8:]); got != ^want {
		return fmt.Errorf("message %#x ends wrong: %#x", want, got)
	}
	return nil
}
