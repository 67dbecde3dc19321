package rnet

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

func TestConnPassesNettestInOneProcess(t *testing.T) {
	leavesNothing(t)
	over(t, allCarriers, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			if c1, err = k.dialer().Dial("tcp", ln.Addr().String()); err != nil {
				return nil, nil, nil, err
			}
			if c2, err = ln.Accept(); err != nil {
				c1.Close()
				return nil, nil, nil, err
			}
			return c1, c2, func() { c1.Close(); c2.Close() }, nil
		})
	})
}

// between are the carriers whose ends are tested in two processes.
var between = orKernel(overTCP, overSoft, overStage)

// Between two processes a pipe goes from this process to a child, which passes
// everything on over a connection of its own back to us: one end dials, the
// other accepts.
func TestConnPassesNettestBetweenProcesses(t *testing.T) {
	leavesNothing(t)
	over(t, between, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		child := roles.Start(t, "relay", k.name, ln.Addr().String())
		nettest.TestConn(t, k.pipesThrough(child.Line(t), ln))
		child.Stop()
	})
}

// pipesThrough makes pipes to a relay and back to a listener.
func (k carrier) pipesThrough(relay string, ln net.Listener) nettest.MakePipe {
	var mu sync.Mutex
	var serial uint64
	return func() (c1, c2 net.Conn, stop func(), err error) {
		mu.Lock()
		defer mu.Unlock()
		serial++
		if c1, err = k.dialer().Dial("tcp", relay); err != nil {
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

func init() { roles.Add("relay", relay) }

// relay accepts connections and passes each on to another address, both ways.
// Its arguments are the carrier and the address.
func relay(args []string) error {
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
	for {
		from, err := ln.Accept()
		if err != nil {
			return err
		}
		to, err := k.dialer().Dial("tcp", args[1])
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

func TestEveryCarrierHasItsName(t *testing.T) {
	for _, k := range allCarriers {
		got, err := carrierNamed(k.name)
		require.NoError(t, err)
		require.Equal(t, k, got)
	}
}
