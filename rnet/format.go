package rnet

import (
	"fmt"
	"io"
)

// A program that prints a connection, in a log for example, would have fmt read fields that other
// goroutines write meanwhile: a data race, and a panic where a slice gets shorter.

// Format prints the network and the addresses, for all verbs.
func (c *Conn) Format(s fmt.State, _ rune) {
	io.WriteString(s, c.network()+" "+c.LocalAddr().String()+"->"+c.RemoteAddr().String())
}

// Format is that of [Conn].
func (c *MessageConn) Format(s fmt.State, verb rune) { c.conn.Format(s, verb) }

// Format prints the network and the address, for all verbs.
func (l *Listener) Format(s fmt.State, _ rune) { io.WriteString(s, l.network+" "+l.Addr().String()) }
