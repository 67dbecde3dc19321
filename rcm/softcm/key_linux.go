package softcm

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
)

// Processes that have a key in common (Rules.Key) prove it to each other with the first
// messages of a connection in a directory:
//
//	dialer    KEY: its nonce
//	listener  KEY: its nonce, and what it makes of the key, both nonces and its socket
//	dialer    KEY: what it makes of the same
//
// Both are HMACs, each with a word of its own for the side, so that none can be sent back.
// The socket is what stands in the directory, by device and inode, which the dialer
// knows of what it connected to, and the listener of its own. So nobody in the middle has use
// for an answer of the listener's: the dialer takes it at the listener's own socket only.
// And a dialer answers nobody but the listener, so that what it says is of no use elsewhere.
//
// A listener that lets the dialer in without a key, and has none, says KEY without more.

const (
	nonceSize = sha256.Size
	proofSize = sha256.Size

	listenerProves = "ramjet: a listener has the key"
	dialerProves   = "ramjet: a dialer has the key"
)

var errNoKey = fmt.Errorf("%w: the peer has not shown that it has the key", rcm.ErrPeerDenied)

// exchange is what both sides of a connection know.
type exchange struct {
	dialer, listener [nonceSize]byte
	at               samehost.SocketID
}

func (e *exchange) proof(key []byte, side string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(side))
	h.Write(e.dialer[:])
	h.Write(e.listener[:])
	var at [16]byte
	binary.BigEndian.PutUint64(at[:], e.at.Device)
	binary.BigEndian.PutUint64(at[8:], e.at.Inode)
	h.Write(at[:])
	return h.Sum(nil)
}

func keyMessage(parts ...[]byte) *handshake.Message {
	m := &handshake.Message{Kind: handshake.KindKey}
	for _, part := range parts {
		m.Private = append(m.Private, part...)
	}
	return m
}

// proveToListener makes both sides prove that they have the key. It also returns nil if the
// listener has no key and is admitted without one.
func (s *socket) proveToListener(key []byte, known bool) error {
	e := exchange{at: s.To()}
	rand.Read(e.dialer[:])
	if err := s.send(keyMessage(e.dialer[:])); err != nil && !errors.Is(err, errHungUp) {
		return err
	}
	m, err := s.expect(handshake.KindKey) // ends with the answer, hang-up, or the deadline
	switch {
	case err != nil:
		return err
	case len(m.Private) == 0 && known:
		return nil
	case len(m.Private) != nonceSize+proofSize:
		return errNoKey
	}
	e.listener = [nonceSize]byte(m.Private)
	if !hmac.Equal(m.Private[nonceSize:], e.proof(key, listenerProves)) {
		return errNoKey
	}
	s.proven = true
	return s.send(keyMessage(e.proof(key, dialerProves)))
}

// answerKey is the listener's part, after the first KEY.
func (s *socket) answerKey(key []byte, first handshake.Message) error {
	if len(first.Private) != nonceSize {
		return fmt.Errorf("%w: KEY of %d bytes", rcm.ErrMalformed, len(first.Private))
	}
	if len(key) == 0 {
		return s.send(keyMessage())
	}
	e := exchange{dialer: [nonceSize]byte(first.Private), at: s.at}
	rand.Read(e.listener[:])
	if err := s.send(keyMessage(e.listener[:], e.proof(key, listenerProves))); err != nil {
		return err
	}
	m, err := s.expect(handshake.KindKey) // ends with the answer, hang-up, or the deadline
	if err != nil {
		return err
	}
	if !hmac.Equal(m.Private, e.proof(key, dialerProves)) {
		return errNoKey
	}
	s.proven = true
	return nil
}

// candidate is a listener in the directory that may be the one, if it has the key.
type candidate struct {
	sock  *socket
	known bool // also without the key
}

// maxCandidates is how many are asked for the key.
const maxCandidates = 16

// settleTime is how long they may take.
const settleTime = 500 * time.Millisecond

// settle finds the candidate that has the key, and lets go of the others. They are all asked
// at once: a stranger that says nothing keeps nobody else waiting. If none has it the error is that of
// a candidate that is known without, or errNoKey: what a stranger says instead counts for nothing.
// That one has hung up is told, for it may have the key, and have closed its listener.
func settle(ctx context.Context, key []byte, list []candidate) (candidate, error) {
	type answer struct {
		candidate
		err error
	}
	answers := make(chan answer, len(list))
	for _, c := range list {
		go func() { // ends with the exchange, ctx, or the close below
			answers <- answer{c, c.sock.interruptible(ctx, func() error { return c.sock.proveToListener(key, c.known) })}
		}()
	}
	failed := errNoKey
	known := false
	for range list {
		a := <-answers
		if a.err == nil {
			for _, c := range list {
				if c.sock != a.sock {
					c.sock.Close()
				}
			}
			return a.candidate, nil
		}
		switch {
		case a.known:
			failed, known = a.err, true
		case !known && errors.Is(a.err, errHungUp):
			failed = fmt.Errorf("%w: %w", errNoKey, errHungUp)
		}
	}
	for _, c := range list {
		c.sock.Close()
	}
	return candidate{}, failed
}
