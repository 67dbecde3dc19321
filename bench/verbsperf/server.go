package verbsperf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// What all clients of a server have together, whatever each of them asks for. A client that comes
// when there are so many waits, with what it has said, until one of them has gone.
const (
	maxClients = 16
	maxMemory  = 4 << 30 // bytes
)

// serve measures what the clients want, each with queue pairs and memory of its
// own, until ctx ends.
//
// It is a tool for hosts that trust each other: whoever reaches the address may measure, as often
// as it likes, and so keep a place. But no client stops it. One that does not go on loses its
// place: see wishLimit and those that follow it. Memory has a limit (maxMemory), beside the words
// of each client, which are short. Where a client cannot be accepted, for want of descriptors for
// instance, the others go on.
func serve(ctx context.Context, dev *verbs.Context, at place, o *options, out, complaints io.Writer) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s%s\n", announcement, ln.Addr())
	return serveAt(ctx, ln, dev, at, log.New(complaints, "bench verbs: ", 0))
}

// serveAt is serve once it listens. It closes ln.
func serveAt(ctx context.Context, ln net.Listener, dev *verbs.Context, at place, complain *log.Logger) error {
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	var clients sync.WaitGroup
	defer clients.Wait() // each ends with its client, a time limit, or ctx
	defer ln.Close()
	places, shared := make(chan struct{}, maxClients), &budget{left: maxMemory}
	for {
		select {
		case places <- struct{}{}: // a client that has gone makes room
		case <-ctx.Done():
			return nil
		}
		conn, err := accept(ctx, ln, complain)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		clients.Go(func() {
			defer func() { <-places }()
			m := meeting{ctx: ctx, dev: dev, place: at, control: newControl(conn), server: true, memory: shared}
			if err := m.serve(); err != nil {
				// of the client's words, too
				complain.Printf("client %v: %.300q", conn.RemoteAddr(), err.Error())
			}
		})
	}
}

// accept waits for a client. An error of one connection, or a want of descriptors or memory, is not
// the end of the listener: it tries again, more and more slowly.
func accept(ctx context.Context, ln net.Listener, complain *log.Logger) (net.Conn, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		conn, err := ln.Accept() // ends with a client, or with ctx
		if err == nil || errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		complain.Printf("%v; trying again in %v", err, pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// serve does one measurement after the other, until the client hangs up.
func (m *meeting) serve() error {
	defer context.AfterFunc(m.ctx, func() { m.control.conn.Close() })()
	defer m.control.conn.Close()
	for {
		var sp spec
		m.control.within(wishLimit)
		// ends with a wish, the client's hang-up, or the time
		if err := m.control.receive(&sp); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := sp.check(); err != nil {
			return err
		}
		if _, _, err := m.one(sp); err != nil && !errors.Is(err, verbs.ErrUnsupported) {
			return err
		}
	}
}

// setUp is how long the set-up of a measurement may take, the making of QPs and connecting them.
func (s *spec) setUp() time.Duration { return setUpLimit + time.Duration(s.QPs)*setUpOfQP }

// memory is what a measurement costs one end at most, in bytes, whatever the device: its messages,
// each QP, with what the software HCA keeps of SENDs for it, and for each request entries of a
// queue and of a CQ, which have sizes that are powers of two, what providers remember of the
// request, and as much again until Go's collector has run.
func (s *spec) memory(attr verbs.DeviceAttr) int64 {
	const words, qp, request = 4 << 20, 320 << 10, 384
	inline := 0
	if !attr.Caps.Has(verbs.CapInlineIsTransfer) { // otherwise requests do not hold it
		inline = min(s.Inline, attr.MaxInline, 1<<20) // no device has more
	}
	return words + 2*int64(s.half()) + int64(s.QPs)*(qp+int64(s.Depth)*int64(request+2*inline)+int64(s.receives(attr))*request)
}

// budget is how many bytes measurements may still have. Without one there is no limit.
type budget struct {
	mu   sync.Mutex
	left int64 // guarded by mu
}

func (b *budget) take(n int64) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.left {
		return fmt.Errorf("%d bytes of memory: %d are left by other clients, try again later", n, b.left)
	}
	b.left -= n
	return nil
}

func (b *budget) give(n int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
}
