package attach

import (
	"os"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/random"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"golang.org/x/sys/unix"
)

const (
	// patience is how long a reader may take to read.
	patience = time.Second
	// backlog is how many readers may wait. A queue that others fill makes
	// readers try again; it is short because each place in it waits for rest.
	backlog = 16
)

// endpoint is the socket from which others read. Readers are served one after the other.
type endpoint struct {
	ln       *samehost.Listener
	document func() ([]byte, error)

	mu     sync.Mutex
	conn   *samehost.Conn // of the reader that is served; guarded by mu
	closed bool           // guarded by mu
}

func listen(document func() ([]byte, error)) (*endpoint, error) {
	if err := samehost.CheckUser(); err != nil {
		return nil, err
	}
	var nonce [nonceLen / 2]byte
	random.Read(nonce[:])
	ln, err := samehost.Listen(samehost.ListenConfig{
		Type: unix.SOCK_STREAM, Name: name(os.Geteuid(), os.Getpid(), nonce), Backlog: backlog,
		Denied: func(samehost.Peer) { time.Sleep(Rest) },
	})
	if err != nil {
		return nil, err
	}
	e := &endpoint{ln: ln, document: document}
	if err := ln.Serve(e.serve); err != nil { // one after the other
		ln.Close()
		return nil, err
	}
	return e, nil
}

func (e *endpoint) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.ln.Close()
	if e.conn != nil {
		e.conn.Close()
	}
}

// serve answers one reader.
func (e *endpoint) serve(conn *samehost.Conn) {
	if e.begin(conn) {
		e.answer(conn)
	}
	conn.Close()
}

// begin makes conn the one that close closes.
func (e *endpoint) begin(conn *samehost.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conn = conn
	return !e.closed
}

// answer writes the document. What a reader does not take is lost to it alone.
func (e *endpoint) answer(conn *samehost.Conn) {
	document, err := e.document()
	if err != nil {
		return
	}
	conn.SetWriteDeadline(time.Now().Add(patience))
	conn.Write(document) // ended by the reader, the deadline, close
}
