package verbsperf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// What all clients of a server have together, whatever each of them asks for. A client that comes when there are so
// many waits, with what it has said, until one of them has gone.
const (
	maxClients = 16
	maxMemory  = 4 << 30 // bytes
)

// serve measures what the clients want, each with queue pairs and memory of its own, until ctx ends.
func serve(ctx context.Context, dev *verbs.Context, at place, o *options, out, complaints io.Writer) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	var clients sync.WaitGroup
	defer clients.Wait() // each ends with its client, a time limit, or ctx
	defer ln.Close()
	fmt.Fprintf(out, "%s%s\n", announcement, ln.Addr())
	complain := log.New(complaints, "bench verbs: ", 0)
	places, shared := make(chan struct{}, maxClients), &budget{left: maxMemory}
	for {
		select {
		case places <- struct{}{}: // a client that has gone makes room
		case <-ctx.Done():
			return nil
		}
		conn, err := ln.Accept() // ends with a client, or with ctx
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
				complain.Printf("client %v: %.300q", conn.RemoteAddr(), err.Error()) // of the client's words, too
			}
		})
	}
}

// serve does one measurement after the other, until the client hangs up.
func (m *meeting) serve() error {
	defer context.AfterFunc(m.ctx, func() { m.control.conn.Close() })()
	defer m.control.conn.Close()
	for {
		var sp spec
		if err := m.control.receive(&sp, setUpLimit); err != nil { // ends with a wish, the client's hang-up, or the time
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

// memory is what a measurement has at one end, about: its messages, and an entry of a queue and of a CQ for each request.
func (s *spec) memory(attr verbs.DeviceAttr) int64 {
	const request = 128
	return 2*int64(s.half()) + int64(s.QPs)*(int64(s.Depth)+int64(s.receives(attr)))*request
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
