package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// An exchange sends as much both ways at once, and each byte is checked on
// arrival. The dialing side begins with what the other one has to know; the
// listening side ends with a byte that says so, so that the dialing one knows
// that its data was right too.

// ExchangeHeader is how many bytes the dialing side sends first.
const ExchangeHeader = 16

const (
	exchangeDone  = 'k'
	exchangePiece = 24 << 10
)

// Exchange is the dialing side: n bytes each way.
func Exchange(c net.Conn, seed uint64, n int) error {
	header := binary.LittleEndian.AppendUint64(nil, seed)
	header = binary.LittleEndian.AppendUint64(header, uint64(n))
	if _, err := c.Write(header); err != nil {
		return fmt.Errorf("write header: %w", err)
	}
	err := bothWays(c, seed, seed+1, n)
	if err != nil {
		return err
	}
	var result [1]byte
	if _, err := io.ReadFull(c, result[:]); err != nil {
		return fmt.Errorf("the other side's result: %w", err)
	}
	if result[0] != exchangeDone {
		return fmt.Errorf("%w: result %#x", errExchange, result[0])
	}
	return nil
}

var errExchange = errors.New("exchange went wrong")

// AnswerExchange is the listening side.
func AnswerExchange(c net.Conn) error {
	var header [ExchangeHeader]byte
	if _, err := io.ReadFull(c, header[:]); err != nil {
		return fmt.Errorf("read header: %w", err)
	}
	seed, n := binary.LittleEndian.Uint64(header[:]), binary.LittleEndian.Uint64(header[8:])
	if n > 1<<30 {
		return fmt.Errorf("%w: header of %d bytes", errExchange, n)
	}
	if err := bothWays(c, seed+1, seed, int(n)); err != nil {
		return err
	}
	_, err := c.Write([]byte{exchangeDone})
	return err
}

// bothWays writes n bytes of one pattern while it reads and checks those of
// another.
func bothWays(c net.Conn, out, in uint64, n int) error {
	written := make(chan error, 1)
	go func() { written <- Write(c, NewRand(out), out, n, exchangePiece) }()
	if err := Read(c, NewRand(in), in, n, exchangePiece); err != nil {
		c.Close() // ends the writer
		<-written
		return err
	}
	return <-written // ends with the data, or the connection
}

// ServeExchanges answers on each connection of ln until it is closed. What
// went wrong goes to failed.
func ServeExchanges(ln net.Listener, failed func(net.Conn, error)) {
	for {
		c, err := ln.Accept() // ended by a peer, or Close
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for { // one exchange after the other, until the peer closes
				if err := AnswerExchange(c); err != nil {
					if !errors.Is(err, io.EOF) {
						failed(c, err)
					}
					return
				}
			}
		}()
	}
}
