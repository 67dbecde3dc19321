package differential

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// stream is what *net.TCPConn and *rnet.Conn have in common.
type stream interface {
	net.Conn
	io.ReaderFrom
	io.WriterTo
	CloseRead() error
	CloseWrite() error
	SetLinger(sec int) error
	SetNoDelay(bool) error
	SetKeepAlive(bool) error
}

// outcome is what a call returned.
type outcome struct {
	N   int64
	Sum uint32 // of the bytes that were read
	Err string
}

func (o outcome) String() string {
	if o.Err == "" {
		return fmt.Sprintf("%d (%08x)", o.N, o.Sum)
	}
	return fmt.Sprintf("%d (%08x) %s", o.N, o.Sum, o.Err)
}

// blocks is the outcome of a call that should have returned long ago.
const blocks = "does not return"

// status is what the kernel tells of a TCP connection. Of a stream only Taken is
// known.
type status struct {
	Taken    int64 // by the WriteTo that waits
	State    uint8 // TCP_ESTABLISHED and so on
	Readable bool  // data, or the end of data
	Ended    bool  // no more data will come, or it is reset
	Broken   bool  // both ways
	Unsent   int   // bytes, and FIN, that the peer's kernel has not acknowledged
	Unread   int
}

// peer is one end of a connection, of this process or of another one.
type peer interface {
	// do does a call and waits for it.
	do(call) outcome
	// start begins a call.
	start(call)
	// finish waits for what start began, of its kind.
	finish(kind) outcome
	status() status
}

// kind is which half a call that may wait waits for.
type kind uint8

const (
	never kind = iota // does not wait
	reads
	writes
)

func (c call) kind() kind {
	switch c.Op {
	case "Read", "WriteTo":
		return reads
	case "Write", "Buffers", "ReadFrom", "ReadFromFailing", "Flood":
		return writes
	}
	return never
}

// local is an end in this process.
type local struct {
	stream
	sent    int // bytes that were written, for what comes next
	taken   atomic.Int64
	pending [writes + 1]chan outcome
}

// patience is for a call that has to return: beyond what a busy machine delays.
const patience = 5 * time.Second

func (l *local) do(c call) outcome {
	done := make(chan outcome, 1)
	go func() { done <- l.call(c) }()
	return within(done)
}

func (l *local) start(c call) {
	done := make(chan outcome, 1)
	l.pending[c.kind()] = done
	l.taken.Store(0)
	go func() { done <- l.call(c) }()
	for c.Op == "Flood" && len(done) == 0 && !l.full() {
		time.Sleep(50 * time.Microsecond) // nobody tells that a Write waits
	}
}

// full reports whether a flood has filled the buffers. More is under way always.
func (l *local) full() bool {
	if c, ok := l.stream.(*rnet.Conn); ok {
		return c.Stats().SendWindow == 0
	}
	return l.status().Unsent > 0
}

func (l *local) finish(k kind) outcome {
	done := l.pending[k]
	l.pending[k] = nil
	return within(done)
}

// passed returns when a deadline has passed, and reports whether it has ended the calls
// that waited.
func (l *local) passed(which string, at time.Time) bool {
	time.Sleep(time.Until(at))
	for k := reads; k <= writes; k++ {
		if which == "SetReadDeadline" && k == writes || which == "SetWriteDeadline" && k == reads {
			continue
		}
		for done := l.pending[k]; done != nil && len(done) == 0; {
			if time.Since(at) > patience {
				return false
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	return true
}

func within(done chan outcome) outcome {
	select {
	case o := <-done:
		return o
	case <-time.After(patience):
		return outcome{Err: blocks}
	}
}

// flood is more than any buffers hold.
var flood = sync.OnceValue(func() []byte { return make([]byte, 64<<20) })

// pattern returns the next n bytes to write. They differ from place to place.
func (l *local) pattern(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		at := l.sent + i
		p[i] = byte(at) ^ byte(at>>8)*31
	}
	return p
}

func (l *local) call(c call) (o outcome) {
	var err error
	switch c.Op {
	case "Read":
		p := make([]byte, c.N)
		var n int
		n, err = l.Read(p)
		for n < c.Least && err == nil {
			var m int
			m, err = l.Read(p[n:])
			n += m
		}
		o.N, o.Sum = int64(n), crc32.ChecksumIEEE(p[:max(n, 0)])
	case "WriteTo":
		sum := crc32.NewIEEE()
		o.N, err = l.WriteTo(io.MultiWriter(sum, counter{&l.taken}))
		o.Sum = sum.Sum32()
	case "Write":
		var n int
		n, err = l.Write(l.pattern(c.N))
		o.N = int64(n)
	case "Flood":
		_, err = l.Write(flood()) // how much goes depends on the buffers
	case "Buffers":
		p := l.pattern(c.N)
		b := net.Buffers{p[:c.N/3], p[c.N/3 : 2*c.N/3], p[2*c.N/3:]}
		o.N, err = b.WriteTo(l.stream)
	case "ReadFrom":
		o.N, err = l.ReadFrom(struct{ io.Reader }{bytes.NewReader(l.pattern(c.N))})
	case "ReadFromFailing":
		o.N, err = l.ReadFrom(io.MultiReader(bytes.NewReader(l.pattern(c.N)), failing{}))
	case "CloseWrite":
		err = l.CloseWrite()
	case "CloseRead":
		err = l.CloseRead()
	case "Close":
		err = l.Close()
	case "CloseTwice":
		errs := make(chan string, 2)
		for range 2 {
			go func() { errs <- describe(l.Close()) }()
		}
		both := []string{<-errs, <-errs} // ended by the two Closes
		slices.Sort(both)
		o.Err = strings.Join(both, "; ")
		return o
	case "SetLinger":
		err = l.SetLinger(c.N)
	case "SetNoDelay":
		err = l.SetNoDelay(true)
	case "SetKeepAlive":
		err = l.SetKeepAlive(true)
	case "Addrs":
		o.Err = fmt.Sprintf("%T %T %s %s", l.LocalAddr(), l.RemoteAddr(), l.LocalAddr().Network(), l.RemoteAddr().Network())
		return o
	default:
		which, when, ok := strings.Cut(c.Op, ":")
		if !ok {
			panic("no such call: " + c.Op)
		}
		set := map[string]func(time.Time) error{"SetDeadline": l.SetDeadline, "SetReadDeadline": l.SetReadDeadline, "SetWriteDeadline": l.SetWriteDeadline}
		at := map[string]time.Time{"none": {}, "past": time.Unix(1, 0), "far": time.Now().Add(time.Hour), "soon": time.Now().Add(time.Millisecond)}
		err = set[which](at[when])
		if when == "soon" && err == nil && l.passed(which, at[when]) {
			err = set[which](at[when]) // if nobody waited, the timers may be late on a busy machine
		}
	}
	if c.kind() == writes {
		l.sent += int(o.N)
	}
	o.Err = describe(err)
	return o
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

type failing struct{}

var errSource = errors.New("the source has failed")

func (failing) Read([]byte) (int, error) { return 0, errSource }

// describe tells an error with all that it wraps, but for addresses.
func describe(err error) string {
	switch e := err.(type) {
	case nil:
		return ""
	case *net.OpError:
		text := e.Op + " " + e.Net
		if e.Source != nil {
			text += " from"
		}
		if e.Addr != nil {
			text += " to"
		}
		return text + ": " + describe(e.Err)
	case *os.SyscallError:
		return e.Syscall + ": " + describe(e.Err)
	case syscall.Errno:
		return unix.ErrnoName(e)
	}
	switch {
	case err == io.EOF:
		return "EOF"
	case errors.Is(err, net.ErrClosed):
		return "closed"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	}
	return fmt.Sprintf("%T %v", err, err)
}

// status asks the kernel.
func (l *local) status() (st status) {
	st.Taken = l.taken.Load()
	conn, ok := l.stream.(*net.TCPConn)
	if !ok {
		return st
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return st
	}
	raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		st.State = info.State
		st.Unsent, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		st.Unread, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ)
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
		for {
			if _, err := unix.Poll(poll, 0); err != unix.EINTR {
				break
			}
		}
		events := poll[0].Revents
		st.Readable = events != 0
		st.Ended = events&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
		st.Broken = events&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return st
}
