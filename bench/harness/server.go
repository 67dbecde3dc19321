package harness

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
	ln      net.Listener
	w       workload
	backend string    // of a workload with a Hop: where what comes goes on
	stop    func()    // ends the workload's program
	beside  computing // of a workload that is Busy

	mu       sync.Mutex
	failures int   // guarded by mu
	first    error // guarded by mu: the first failure
}

func startServer(t transport, at site, backend string, w workload) (*server, error) {
	ln, err := t.listen(at)
	if err != nil {
		return nil, err
	}
	s := &server{ln: ln, w: w, backend: backend, stop: func() { ln.Close() }}
	if w.Program == "" {
		go AcceptUntilClosed(ln, s.fail, s.handler())
		return s, nil
	}
	p, err := programByName(w.Program)
	if err == nil {
		s.stop, err = p.Serve(ln, s.fail)
	}
	if err != nil {
		ln.Close()
		return nil, err
	}
	return s, nil
}

func (s *server) addr() string { return s.ln.Addr().String() }

func (s *server) close() { s.stop() }

// obey answers the command's orders. They arrive between the rounds.
func (s *server) obey(cmd command) reply {
	r := reply{CPU: cpuTime()}
	switch cmd {
	case prepare:
		if s.w.Busy {
			s.beside.start()
		}
	case finish:
		s.beside.stop()
	case snapshot:
	case memoryInUse:
		readMemory(&r)
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

func (s *server) handler() func(net.Conn) error {
	switch s.w.Kind {
	case oneWay:
		return s.swallow
	case openings:
		return s.echoOnce
	}
	if s.w.Hop {
		return s.passOn
	}
	return s.echo
}

// passOn dials the backend by TCP and copies both ways until both have ended.
func (s *server) passOn(conn net.Conn) error {
	onward, err := net.Dial("tcp", s.backend)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	defer onward.Close()
	var back sync.WaitGroup
	var backErr error
	back.Go(func() { backErr = passBytes(conn, onward) })
	err = passBytes(onward, conn)
	back.Wait() // ended by the backend's last byte, or an error
	return errors.Join(err, backErr)
}

// passBytes copies from src to dst, and tells dst when there are no more.
func passBytes(dst, src net.Conn) error {
	_, err := io.Copy(dst, src)
	if err == nil {
		err = dst.(interface{ CloseWrite() error }).CloseWrite()
	}
	if err != nil {
		dst.Close() // ends the other way, too
		src.Close()
		return fmt.Errorf("pass on: %w", err)
	}
	return nil
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
