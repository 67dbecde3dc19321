//go:build !linux

package rgnet

import "github.com/panjf2000/gnet/v2"

func ownConn(gnet.Conn) bool { return false }

func gnetLoop(c gnet.Conn) gnet.EventLoop { return c.EventLoop() }
