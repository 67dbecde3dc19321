package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/panjf2000/gnet/v2"
)

// eventServer is the serving process of a test in which event handlers do the
// work: an echo, served by the transport's engine.
type eventServer struct {
	server
	gnet.BuiltinEventEngine
	address string

	eng   gnet.Engine   // set by OnBoot, before up is closed
	up    chan struct{} // closed when connections are served
	begun sync.Once
	ended chan error // what run returned
}

// echoed is what the server knows of a connection.
type echoed struct {
	due   uint64 // number of the next message
	known bool   // due is
}

func startEventServer(e engine, at site, w workload) (*eventServer, error) {
	if e.run == nil {
		return nil, errors.New("this transport serves no event handlers")
	}
	address, err := e.place(at)
	if err != nil {
		return nil, err
	}
	s := &eventServer{server: server{w: w}, address: address, up: make(chan struct{}), ended: make(chan error, 1)}
	opts := append(eventOptions(w), gnet.WithTicker(true)) // the first tick says that it is up
	go func() { s.ended <- e.run(s, e.network+"://"+address, opts...) }()
	select { // ended by the engine's first tick, or its failure
	case <-s.up:
		return s, nil
	case err := <-s.ended:
		return nil, fmt.Errorf("listen at %s: %w", address, err)
	}
}

// stopTime is how long an engine may take to end; the process ends then anyway.
const stopTime = time.Second

func (s *eventServer) close() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	s.eng.Stop(ctx)
}

func (s *eventServer) OnBoot(eng gnet.Engine) gnet.Action {
	s.eng = eng
	return gnet.None
}

func (s *eventServer) OnTick() (time.Duration, gnet.Action) {
	s.begun.Do(func() { close(s.up) })
	return time.Hour, gnet.None
}

func (s *eventServer) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	c.SetContext(new(echoed))
	return nil, gnet.None
}

// OnTraffic sends each message back.
func (s *eventServer) OnTraffic(c gnet.Conn) gnet.Action {
	e := c.Context().(*echoed)
	for c.InboundBuffered() >= s.w.Size {
		message, err := c.Next(s.w.Size)
		if err == nil {
			err = e.check(message)
		}
		if err == nil {
			_, err = c.Write(message)
		}
		if err != nil {
			s.fail(err)
			return gnet.Close
		}
	}
	return gnet.None
}

func (e *echoed) check(message []byte) error {
	if !e.known {
		e.due, _ = number(message)
		e.known = true
	}
	err := check(message, e.due)
	e.due++
	return err
}

func (s *eventServer) OnClose(c gnet.Conn, err error) gnet.Action {
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		s.fail(err)
	case err != nil && c.InboundBuffered() > 0:
		s.fail(fmt.Errorf("read: %w", io.ErrUnexpectedEOF))
	}
	return gnet.None
}
