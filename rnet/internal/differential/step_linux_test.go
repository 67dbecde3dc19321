package differential

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// call is one call of a method of a connection.
type call struct {
	Op string
	N  int // bytes, or seconds of SetLinger
	// Least is how much a Read waits for. Nobody can say that all has been taken in that has
	// arrived, where there is no echo, and a Read gives out what has been.
	Least int
}

// step is a call at one of the two ends, 0 the one that has dialed.
type step struct {
	End int
	call
}

func (s step) String() string {
	end := "dialed"
	if s.End == 1 {
		end = "accepted"
	}
	if s.N != 0 || takesNumber[s.Op] {
		return fmt.Sprintf("%s.%s(%d)", end, s.Op, s.N)
	}
	return fmt.Sprintf("%s.%s()", end, s.Op)
}

type sequence []step

func (q sequence) String() string {
	lines := make([]string, len(q))
	for i, s := range q {
		lines[i] = fmt.Sprintf("  %2d %s", i, s)
	}
	return strings.Join(lines, "\n")
}

var takesNumber = map[string]bool{"Read": true, "Write": true, "Buffers": true, "ReadFrom": true, "SetLinger": true}

// A direction gets no more than volume bytes, which all buffers have room for, so
// that a Write does not wait unless it floods.
const volume = 48 << 10

// bigRead reads whatever there is, shortRead is what a Read that waits asks for: of
// what is written at once the first piece has as much.
const (
	bigRead   = 70_000
	shortRead = 1000
)

// some returns one of list.
func some[T any](rnd *rand.Rand, list ...T) T { return list[rnd.IntN(len(list))] }

// kinds are the calls, each as often as it is to be likely.
var kinds = strings.Fields(`
	Read Read Read Read Read Read Read Read
	Write Write Write Write Write Write Write Write
	Buffers ReadFrom ReadFromFailing WriteTo Flood
	CloseWrite CloseWrite CloseWrite CloseRead CloseRead
	Close Close Close CloseTwice
	SetLinger SetLinger SetNoDelay SetKeepAlive
	SetDeadline:past SetDeadline:none SetReadDeadline:past SetReadDeadline:none SetReadDeadline:none
	SetWriteDeadline:past SetWriteDeadline:none SetDeadline:far SetReadDeadline:soon SetWriteDeadline:soon`)

// generate makes the sequence that a seed names. exits is the end that is a process, which
// may end.
func generate(seed uint64, exits int) (q sequence) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var sent [2]int
	for range 2 + rnd.IntN(12) {
		s := step{End: rnd.IntN(2), call: call{Op: some(rnd, kinds...)}}
		switch s.Op {
		case "Read":
			s.N = some(rnd, 0, 1, 7, 1000, 5000, bigRead)
		case "Write", "ReadFrom":
			s.N = some(rnd, 0, 1, 1, 100, 3000, 5000, 20_000)
		case "Buffers":
			s.N = 3 * some(rnd, 1500, 5000)
		case "ReadFromFailing":
			s.N = some(rnd, 0, 50)
		case "SetLinger":
			s.N = some(rnd, -1, 0, 0, 1)
		}
		switch s.Op {
		case "Write", "ReadFrom", "ReadFromFailing", "Buffers":
			if sent[s.End]+s.N > volume {
				continue
			}
			sent[s.End] += s.N
		}
		q = append(q, s)
	}
	switch rnd.IntN(4) {
	case 0: // one waits for an answer, and goes on writing when the other has closed
		e := rnd.IntN(2)
		q = append(q, step{e, call{Op: "Read", N: bigRead}}, step{1 - e, call{Op: "Write", N: 1}}, step{1 - e, call{Op: "Close"}})
		q = append(q, slices.Repeat(sequence{{e, call{Op: "Write", N: 1}}}, 3)...)
	case 1:
		if exits == none {
			break
		}
		q = append(q, step{End: exits, call: call{Op: some(rnd, "Exit", "Kill")}})
	}
	for range 2 { // what is left, and what comes after it
		q = append(q, step{0, call{Op: "Read", N: bigRead}}, step{1, call{Op: "Read", N: bigRead}})
	}
	return append(q, step{0, call{Op: "Addrs"}}, step{0, call{Op: "Close"}}, step{1, call{Op: "Close"}}, step{1, call{Op: "Addrs"}})
}
