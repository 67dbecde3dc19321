package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// server is the serving process: it accepts connections and runs a goroutine
// for each, which does what the workload wants.
type server struct {
	ln net.Listener
	w  workload

	mu       sync.Mutex
	failures int   // guarded by mu
	first    error // guarded by mu: the first failure
}

func startServer(t transport, dir string, w workload) (*server, error) {
	ln, err := t.listen(dir)
	if err != nil {
		return nil, err
	}
	s := &server{ln: ln, w: w}
	go s.accept()
	return s, nil
}

func (s *server) addr() string { return s.ln.Addr().String() }

func (s *server) close() { s.ln.Close() }

// obey answers the command's orders. They arrive between the rounds.
func (s *server) obey(cmd command) reply {
	r := reply{CPU: cpuTime()}
	switch cmd {
	case snapshot:
	case weigh:
		weighProcess(&r)
	default:
		return reply{Err: fmt.Sprintf("the server does not know %q", cmd)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Failures = s.failures; s.first != nil {
		r.Failure = s.first.Error()
	}
	return r
}

func (s *server) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures++
	if s.first == nil {
		s.first = fmt.Errorf("server: %w", err)
	}
}

// accept runs until the listener is closed.
func (s *server) accept() {
	serve := s.handler()
	for {
		conn, err := s.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.fail(fmt.Errorf("accept: %w", err))
			continue
		}
		go func() {
			defer conn.Close()
			if err := serve(conn); err != nil {
				s.fail(err)
			}
		}()
	}
}

func (s *server) handler() func(net.Conn) error {
	switch s.w.Kind {
	case oneWay:
		return s.swallow
	case openings:
		return s.echoOnce
	default:
		return s.echo
	}
}

// echo sends each message back until the client closes.
func (s *server) echo(conn net.Conn) error {
	message := make([]byte, s.w.Size)
	var due uint64
	for known := false; ; due++ {
		if _, err := io.ReadFull(conn, message); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if !known {
			due, _ = number(message)
			known = true
		}
		if err := check(message, due); err != nil {
			return err
		}
		if _, err := conn.Write(message); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
}

// echoOnce sends one message back and closes. That the server closes first is
// what a server of short connections usually does, and it leaves TCP's
// TIME_WAIT on its side, where it does not use up the client's ports.
func (s *server) echoOnce(conn net.Conn) error {
	message := make([]byte, s.w.Size)
	if _, err := io.ReadFull(conn, message); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	due, _ := number(message)
	if err := check(message, due); err != nil {
		return err
	}
	if _, err := conn.Write(message); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// swallowBuffer is how much a one-way server asks for at once, if messages
// are not larger.
const swallowBuffer = 64 << 10

// swallow takes bursts of messages, and answers the last one of each burst
// with the number of messages that it had, until the client closes.
func (s *server) swallow(conn net.Conn) error {
	size := s.w.Size
	buf := make([]byte, size*max(1, swallowBuffer/size))
	answer := make([]byte, 8)
	var due, count uint64
	known, held := false, 0 // held bytes of buf are filled
	for {
		n, err := conn.Read(buf[held:])
		if err == io.EOF && held == 0 && count == 0 {
			return nil
		} else if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		held += n
		rest := buf[:held]
		for ; len(rest) >= size; rest = rest[size:] {
			message := rest[:size]
			got, last := number(message)
			if !known {
				due, known = got, true
			}
			if err := check(message, due); err != nil {
				return err
			}
			due++
			count++
			if last == 0 {
				continue
			}
			binary.LittleEndian.PutUint64(answer, count)
			if _, err := conn.Write(answer); err != nil {
				return fmt.Errorf("write: %w", err)
			}
			count = 0
		}
		held = copy(buf, rest)
	}
}
