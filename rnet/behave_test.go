package rnet

import (
	"fmt"
	"io"
	"net"

	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

func init() { roles.Add("target", target) }

// What the other end does with a connection is told by its first byte.
const (
	modeSilent = 's' // neither reads nor writes
	modeSource = 'w' // writes without end
	modeSink   = 'r' // reads without end
	modeEcho   = 'e'
	modeCount  = 'c' // reads to the end, then writes a byte
)

func behave(c net.Conn, mode byte) {
	switch mode {
	case modeSource:
		for buf := make([]byte, 100<<10); ; {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	case modeSink:
		io.Copy(io.Discard, c)
	case modeEcho:
		for buf := make([]byte, 64<<10); ; {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
	case modeCount:
		buf := make([]byte, 256<<10)
		for err := error(nil); err == nil; {
			_, err = c.Read(buf)
		}
		c.Write(buf[:1])
	}
}

// serveModes accepts connections and does with each what its first byte says,
// until the listener is closed. A silent one is never closed.
func serveModes(ln net.Listener) error {
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			var mode [1]byte
			if _, err := io.ReadFull(c, mode[:]); err == nil && mode[0] != modeSilent {
				behave(c, mode[0])
				c.Close()
			}
		}()
	}
}

// target listens, says where, and serves. Its argument is the carrier.
func target(args []string) error {
	k, err := carrierNamed(args[0])
	if err != nil {
		return err
	}
	defer k.install()()
	ln, err := k.listenConfig().Listen(ctxBackground, "tcp", k.anyPort())
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	return serveModes(ln)
}
