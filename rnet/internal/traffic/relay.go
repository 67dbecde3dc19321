package traffic

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"

	"golang.org/x/net/nettest"
)

// Relay accepts connections and passes each on over one that it dials, both ways, until the
// listener is closed.
func Relay(ln net.Listener, dial func() (net.Conn, error)) error {
	for {
		from, err := ln.Accept()
		if err != nil {
			return err
		}
		to, err := dial()
		if err != nil {
			return err
		}
		go passOn(from, to)
		go passOn(to, from)
	}
}

// passOn copies from one connection to the other. The end of the one ends the
// sending half of the other; an error ends both.
func passOn(from, to net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		from.Close()
		to.Close()
		return
	}
	to.(interface{ CloseWrite() error }).CloseWrite()
}

// PipesThrough makes pipes of which one end is dialed, to a relay, and the other accepted from
// there.
func PipesThrough(dial func() (net.Conn, error), ln net.Listener) nettest.MakePipe {
	var mu sync.Mutex
	var serial uint64
	return func() (c1, c2 net.Conn, stop func(), err error) {
		mu.Lock()
		defer mu.Unlock()
		serial++
		if c1, err = dial(); err != nil {
			return nil, nil, nil, err
		}
		if err = binary.Write(c1, binary.LittleEndian, serial); err != nil {
			return nil, nil, nil, err
		}
		if c2, err = ln.Accept(); err != nil {
			return nil, nil, nil, err
		}
		var echoed uint64
		if err = binary.Read(c2, binary.LittleEndian, &echoed); err != nil {
			return nil, nil, nil, err
		}
		if echoed != serial {
			return nil, nil, nil, fmt.Errorf("pipe %d came back as %d", serial, echoed)
		}
		return c1, c2, func() { c1.Close(); c2.Close() }, nil
	}
}
