package rgnet

import "github.com/panjf2000/gnet/v2"

// ownConn reports whether c is a stream, not a connection of gnet's.
func ownConn(c gnet.Conn) bool {
	_, ok := c.(*conn)
	return ok
}

// gnetLoop returns gnet's loop that serves c.
func gnetLoop(c gnet.Conn) gnet.EventLoop {
	if own, ok := c.EventLoop().(*eventLoop); ok {
		return own.gnet
	}
	return c.EventLoop()
}
