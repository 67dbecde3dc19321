package interoptest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// perftestConn is the TCP connection through which two programs of perftest
// tell each other where their QPs and memory are, and how they fared. All of
// it is exchanges: the client sends, the server answers with as many bytes of
// the same meaning. The programs take what one read returns for the whole, so
// every message must be one write. This is how 6.06 speaks, which is what
// Debian 12 has (src/perftest_communication.c):
//
//	hello:  version, length of the buffer that is cycled, cache line, MTU
//	keys:   the addresses; after them each side connects its QP
//	keys:   again, which the programs print
//	keys:   again: both QPs are ready, the client begins
//	keys:   again: the client has ended
//	report: what the client has measured, five exchanges
//	keys:   again
//	"done": each sends it, and reads nothing more
//
// The programs that measure latency send the first keys twice, and stop after
// "both are ready". They do not tell each other size and number of messages:
// the command lines have to agree.
type perftestConn struct {
	net.Conn
	client bool // sends first in every exchange
}

func (c perftestConn) exchange(mine []byte) (theirs []byte, err error) {
	theirs = make([]byte, len(mine))
	if c.client {
		if _, err := c.Write(mine); err != nil {
			return nil, err
		}
	}
	// Ends with the answer, the end of the program, or the connection's deadline.
	if _, err := io.ReadFull(c, theirs); err != nil {
		return nil, err
	}
	if !c.client {
		if _, err := c.Write(mine); err != nil {
			return nil, err
		}
	}
	return theirs, nil
}

const (
	perftestVersion = "6.06"
	// The programs walk through a buffer of this many bytes with messages of
	// up to half of it, each at the start of a cache line. Of the two sides'
	// numbers the greater counts.
	perftestCycle     = 4096
	perftestCacheLine = 64
)

// hello exchanges what comes before the addresses, and returns the lesser MTU.
func (c perftestConn) hello(mtu verbs.MTU) (verbs.MTU, error) {
	version := make([]byte, 16) // text, filled up with zeros
	copy(version, perftestVersion)
	theirs, err := c.exchange(version)
	if err != nil {
		return 0, fmt.Errorf("exchange of versions: %w", err)
	}
	if text, _, _ := strings.Cut(string(theirs), "\x00"); text != perftestVersion {
		return 0, fmt.Errorf("the peer is perftest %q, and this is how %s speaks", text, perftestVersion)
	}
	for _, number := range []uint32{perftestCycle, perftestCacheLine} {
		theirs, err := c.exchange(binary.BigEndian.AppendUint32(nil, number))
		if err != nil {
			return 0, fmt.Errorf("exchange of system data: %w", err)
		}
		if got := binary.BigEndian.Uint32(theirs); got != number {
			return 0, fmt.Errorf("the peer has %d where this machine should have %d", got, number)
		}
	}
	// The code of the MTU as a digit, and the zero that ends it.
	if theirs, err = c.exchange([]byte{'0' + byte(mtu), 0}); err != nil {
		return 0, fmt.Errorf("exchange of MTUs: %w", err)
	}
	other := verbs.MTU(theirs[0] - '0')
	if other < verbs.MTU256 || other > verbs.MTU4096 {
		return 0, fmt.Errorf("the peer has MTU %q", theirs)
	}
	return min(mtu, other), nil
}

// perftestKeys is where a QP and its memory are.
type perftestKeys struct {
	LID      uint16 // of the port, 0 on Ethernet
	OutReads uint16 // READs and atomics that the QP takes at once
	QPN      uint32
	PSN      uint32 // of the first packet that the QP sends
	RKey     uint32
	Addr     uint64    // where the peer may write, read and count
	GID      verbs.GID // zero where the path has none
	SRQN     uint32    // 0 without an SRQ
}

// The text of keys is hexadecimal digits with a colon behind each number, and
// behind each byte of the GID, and a zero byte at the end. Without a GID none of its bytes
// is there, and the last colon neither.
func (k perftestKeys) text() []byte {
	b := fmt.Appendf(nil, "%04x:%04x:%06x:%06x:%08x:%016x:", k.LID, k.OutReads, k.QPN, k.PSN, k.RKey, k.Addr)
	if k.GID == (verbs.GID{}) {
		return fmt.Appendf(b, "%08x\x00", k.SRQN)
	}
	for _, octet := range k.GID {
		b = fmt.Appendf(b, "%02x:", octet)
	}
	return fmt.Appendf(b, "%08x:\x00", k.SRQN)
}

func parsePerftestKeys(b []byte) (k perftestKeys, err error) {
	words := strings.Split(strings.TrimRight(string(b), ":\x00"), ":")
	const numbers = 7
	if len(words) != numbers && len(words) != numbers+len(k.GID) {
		return k, fmt.Errorf("keys %q of %d words, want %d, and %d with a GID", b, len(words), numbers, numbers+len(k.GID))
	}
	number := func(i, bits int) uint64 {
		n, parseErr := strconv.ParseUint(words[i], 16, bits)
		err = errors.Join(err, parseErr)
		return n
	}
	k.LID, k.OutReads = uint16(number(0, 16)), uint16(number(1, 16))
	k.QPN, k.PSN, k.RKey, k.Addr = uint32(number(2, 24)), uint32(number(3, 24)), uint32(number(4, 32)), number(5, 64)
	for i := range words[numbers:] {
		k.GID[i] = byte(number(6+i, 8))
	}
	k.SRQN = uint32(number(len(words)-1, 32))
	return k, err
}

// keys exchanges addresses; later in the conversation this is how the two
// sides wait for each other.
func (c perftestConn) keys(mine perftestKeys) (perftestKeys, error) {
	theirs, err := c.exchange(mine.text())
	if err != nil {
		return perftestKeys{}, fmt.Errorf("exchange of keys: %w", err)
	}
	return parsePerftestKeys(theirs)
}

// perftestReport is what a bandwidth program has measured.
type perftestReport struct {
	Size       uint64 // bytes of a message
	Iterations uint64
	Peak       float64 // MiB/s
	Average    float64 // MiB/s
	Rate       float64 // millions of messages a second
}

// line matches the line that the programs print of it.
func (r perftestReport) line() string {
	return fmt.Sprintf(`(?m)^\s*%d\s+%d\s+%.2f\s+%.2f\s+%.6f\s*$`, r.Size, r.Iterations, r.Peak, r.Average, r.Rate)
}

// report exchanges the numbers, each by itself and in network byte order.
func (c perftestConn) report(mine perftestReport) (perftestReport, error) {
	var theirs [5]uint64
	for i, number := range []uint64{
		mine.Size, mine.Iterations, math.Float64bits(mine.Peak), math.Float64bits(mine.Average), math.Float64bits(mine.Rate),
	} {
		b, err := c.exchange(binary.BigEndian.AppendUint64(nil, number))
		if err != nil {
			return perftestReport{}, fmt.Errorf("exchange of reports: %w", err)
		}
		theirs[i] = binary.BigEndian.Uint64(b)
	}
	return perftestReport{
		Size: theirs[0], Iterations: theirs[1],
		Peak: math.Float64frombits(theirs[2]), Average: math.Float64frombits(theirs[3]), Rate: math.Float64frombits(theirs[4]),
	}, nil
}

// done ends the conversation. The C program sends its word and closes, without
// a look for ours. So we send none: if it came before the close, the kernel
// would reset the connection, and the C program's word could be lost.
func (c perftestConn) done() error {
	const text = "done\x00"
	theirs := make([]byte, len(text))
	if _, err := io.ReadFull(c, theirs); err != nil { // ends as in exchange
		return fmt.Errorf("reading the peer's last word: %w", err)
	}
	if string(theirs) != text {
		return fmt.Errorf("the peer's last word is %q", theirs)
	}
	return nil
}
