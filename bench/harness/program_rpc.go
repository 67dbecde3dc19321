package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
)

// netRPC is net/rpc with a connection for each call at a time.
var netRPC = Program{
	Name:  "rpc",
	Title: "net/rpc",
	Serve: func(ln net.Listener, fail func(error)) (func(), error) {
		s := rpc.NewServer()
		if err := s.RegisterName("Echo", echoRPC{}); err != nil {
			return nil, err
		}
		go AcceptUntilClosed(ln, fail, func(conn net.Conn) error {
			s.ServeConn(conn) // ended by the client
			return nil
		})
		return func() { ln.Close() }, nil
	},
	Connect: func(dial Dial, calls int) (Client, error) {
		return connectEach(dial, calls, func(conn net.Conn) connClient { return rpcClient{rpc.NewClient(conn)} })
	},
}

type echoRPC struct{}

// Call answers with what it is asked.
func (echoRPC) Call(message []byte, answer *[]byte) error {
	*answer = message
	return nil
}

type rpcClient struct{ *rpc.Client }

func (c rpcClient) call(message, answer []byte) error {
	var got []byte
	if err := c.Call("Echo.Call", message, &got); err != nil {
		return err
	}
	if n := copy(answer, got); n != len(answer) || n != len(got) {
		return fmt.Errorf("the answer has %d bytes", len(got))
	}
	return nil
}

func (c rpcClient) close() error { return c.Client.Close() }

// connClient is the client of a program on one connection.
type connClient interface {
	call(message, answer []byte) error
	close() error
}

// connClients has one for each caller.
type connClients []connClient

func connectEach(dial Dial, calls int, client func(net.Conn) connClient) (Client, error) {
	var all connClients
	for range calls {
		conn, err := dial(context.Background())
		if err != nil {
			all.Close()
			return nil, fmt.Errorf("dial: %w", err)
		}
		all = append(all, client(conn))
	}
	return all, nil
}

func (all connClients) Call(caller int, message, answer []byte) error {
	return all[caller].call(message, answer)
}

func (all connClients) Close() error {
	var errs error
	for _, c := range all {
		errs = errors.Join(errs, c.close())
	}
	return errs
}
