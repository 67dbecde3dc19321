// Package wire is what the program outside the virtual machine and the one inside
// say to each other: a job, which lies in the guest's root file system before it
// boots, and messages over a port that carries nothing else.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Kind says what a message's payload is.
type Kind byte

// Messages from the guest.
const (
	Ready  Kind = 'r' // the devices are there and the program can start; text for people
	Stdout Kind = 'o' // bytes that the program wrote to its standard output
	Stderr Kind = 'e' // bytes that the program wrote to its standard error
	Path   Kind = 'p' // a file of the guest follows, with this path
	Data   Kind = 'd' // the next bytes of the file that was named last
	Exit   Kind = 'x' // the program's end: a Status, the last message
	Failed Kind = 'f' // the guest could not be set up: why, the last message
)

// Messages to the guest.
const (
	Begin  Kind = 'b' // a guest of a pair starts its program: the other is ready too
	Signal Kind = 's' // one byte, the signal for the program
)

// MaxPayload is the largest payload of a message, in bytes.
const MaxPayload = 64 << 10

// ErrTooLong is the error for a message with a payload above MaxPayload, which
// this program never sends: the stream is not what it should be.
var ErrTooLong = errors.New("message is longer than any that is sent")

// headerSize is the kind and the payload's length, little endian.
const headerSize = 5

// Write writes messages of one kind that carry the payload, as many as it takes,
// and at least one. Each message is one call of Write.
func Write(w io.Writer, kind Kind, payload []byte) error {
	for first := true; first || len(payload) > 0; first = false {
		n := min(len(payload), MaxPayload)
		message := make([]byte, headerSize, headerSize+n)
		message[0] = byte(kind)
		binary.LittleEndian.PutUint32(message[1:], uint32(n))
		if _, err := w.Write(append(message, payload[:n]...)); err != nil {
			return err
		}
		payload = payload[n:]
	}
	return nil
}

// Read reads one message. The error is io.EOF at the end of the stream and
// io.ErrUnexpectedEOF within a message.
func Read(r io.Reader) (Kind, []byte, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(header[1:])
	if n > MaxPayload {
		return 0, nil, fmt.Errorf("kind %q, %d bytes: %w", header[0], n, ErrTooLong)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return Kind(header[0]), payload, nil
}

// Status is how a program ended.
type Status struct {
	Code   uint8 // its exit status, if Signal is 0
	Signal uint8 // the signal that killed it
}

// Append appends the status as it stands in an Exit message.
func (s Status) Append(b []byte) []byte { return append(b, s.Code, s.Signal) }

// ParseStatus reads the payload of an Exit message.
func ParseStatus(payload []byte) (Status, error) {
	if len(payload) != 2 {
		return Status{}, fmt.Errorf("status of %d bytes", len(payload))
	}
	return Status{Code: payload[0], Signal: payload[1]}, nil
}

// ExitCode is the status as shells give it: 128 and the signal's number for a
// program that a signal killed.
func (s Status) ExitCode() int {
	if s.Signal != 0 {
		return 128 + int(s.Signal)
	}
	return int(s.Code)
}
