package harness

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What two processes can do at best who share memory, and a processor each:
// they do nothing but poll it. No connection is faster, whatever it is made
// of.
//
//	word    written by         what
//	count   client, server     odd while the server has to answer
//	active  client             0 while the server may sleep
//	head    client             bytes put into the ring so far
//	tail    server             bytes taken out of it
//
// Each has a cache line of its own.
type floorMemory struct {
	count, active, head, tail *atomic.Uint64
	ring                      []byte
}

const (
	ringBytes  = 256 << 10 // stays in the cache that processors share
	ringPiece  = 16 << 10  // the two copies overlap by pieces
	ringAt     = 4096      // where it begins in the memory
	floorBytes = ringAt + ringBytes
)

func mapFloor(fd int) (floorMemory, error) {
	b, err := unix.Mmap(fd, 0, floorBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return floorMemory{}, fmt.Errorf("map shared memory: %w", err)
	}
	word := func(line int) *atomic.Uint64 {
		// beyond what a processor fetches ahead
		return (*atomic.Uint64)(unsafe.Pointer(&b[line*256]))
	}
	return floorMemory{count: word(0), active: word(1), head: word(2), tail: word(3), ring: b[ringAt:]}, nil
}

// floorServer is the end that answers. It maps the memory until its process
// ends.
type floorServer struct {
	server
	memory floorMemory
	file   *os.File
}

func startFloor(w workload) (*floorServer, error) {
	s, err := makeFloor(w)
	if err == nil {
		go s.serve()
	}
	return s, err
}

func makeFloor(w workload) (*floorServer, error) {
	fd, err := unix.MemfdCreate("bench", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create shared memory: %w", err)
	}
	s := &floorServer{server: server{w: w}, file: os.NewFile(uintptr(fd), "memfd")}
	if err := s.file.Truncate(floorBytes); err != nil {
		return nil, fmt.Errorf("size shared memory: %w", err)
	}
	if s.memory, err = mapFloor(fd); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *floorServer) addr() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.file.Fd())
}

func (s *floorServer) close() {}

// serve ends with the process.
func (s *floorServer) serve() {
	step := s.answerBall
	if s.w.Kind == bareRing {
		step = s.emptyRing()
	}
	for {
		if s.memory.active.Load() == 0 {
			time.Sleep(100 * time.Microsecond) // until a round begins
			continue
		}
		for range 1000 {
			step()
		}
	}
}

func (s *floorServer) answerBall() {
	if v := s.memory.count.Load(); v&1 == 1 {
		s.memory.count.Store(v + 1)
	}
}

// emptyRing returns what takes a piece out, if there is one, and checks each
// message.
func (s *floorServer) emptyRing() func() {
	message := make([]byte, s.w.Size)
	var tail, due uint64
	held := 0
	return func() {
		n := int(s.memory.head.Load() - tail)
		if n == 0 {
			return
		}
		at := int(tail % ringBytes)
		n = copy(message[held:], s.memory.ring[at:at+min(n, ringPiece, ringBytes-at)])
		tail += uint64(n)
		s.memory.tail.Store(tail)
		if held += n; held < len(message) {
			return
		}
		if err := check(message, due); err != nil {
			s.fail(err)
		}
		held = 0
		due++
	}
}

// floorClient is the end that begins.
type floorClient struct {
	*client
	memory floorMemory
	next   uint64 // number of the next message
	out    []byte
}

func joinFloor(w workload, addr string) (worker, error) {
	f, err := os.OpenFile(addr, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open shared memory: %w", err)
	}
	defer f.Close()
	memory, err := mapFloor(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	c := &floorClient{client: newClient(transport{}, addr, w), memory: memory, out: make([]byte, w.Size)}
	c.load = c
	return c, nil
}

func (c *floorClient) connect(int) {}

func (c *floorClient) closeConns() {}

func (c *floorClient) work(d time.Duration) int64 {
	c.memory.active.Store(1)
	defer c.memory.active.Store(0)
	until := time.Since(c.epoch) + d
	if c.w.Kind == bareRing {
		return c.fillRing(until)
	}
	return c.roundTrips(until)
}

// roundTripBatch is how many round trips there are between looks at the clock: a look
// takes a good part of the time of one.
const roundTripBatch = 16

func (c *floorClient) roundTrips(until time.Duration) int64 {
	count := c.memory.count
	v := count.Load()
	for ops := int64(0); ; {
		began := time.Since(c.epoch)
		for range roundTripBatch {
			count.Store(v + 1)
			v += 2
			for spins := 1; count.Load() != v; spins++ {
				if spins%spinsToLook == 0 && c.silent(until) {
					return ops
				}
			}
		}
		ended := time.Since(c.epoch)
		c.lats[0].record((ended - began) / roundTripBatch)
		if ops += roundTripBatch; ended >= until {
			return ops
		}
	}
}

// spinsToLook is how often the client looks for what it waits for before it looks at the clock.
const spinsToLook = 1 << 20

// silent reports whether the server is gone: it has not answered for long after the time was over.
func (c *floorClient) silent(until time.Duration) bool {
	if time.Since(c.epoch) < until+patience {
		return false
	}
	c.fail(errors.New("the server does not answer"))
	return true
}

// fillRing writes messages until the time is over, and waits until the server
// has taken the last one.
func (c *floorClient) fillRing(until time.Duration) int64 {
	head, tail := c.memory.head, c.memory.tail
	put := head.Load()
	ops := int64(0)
	for ; time.Since(c.epoch) < until; ops++ {
		stamp(c.out, c.next, 0)
		c.next++
		for rest := c.out; len(rest) > 0; {
			at := int(put % ringBytes)
			n := min(len(rest), ringPiece, ringBytes-at)
			for spins := 1; put+uint64(n)-tail.Load() > ringBytes; spins++ {
				if spins%spinsToLook == 0 && c.silent(until) {
					return ops
				}
			}
			copy(c.memory.ring[at:], rest[:n])
			rest = rest[n:]
			put += uint64(n)
			head.Store(put)
		}
	}
	for spins := 1; tail.Load() != put; spins++ {
		if spins%spinsToLook == 0 && c.silent(until) {
			return ops
		}
	}
	return ops
}
