package differential

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

// pair is a connection, both ends.
type pair struct {
	ends [2]peer
	// echo is another stream of the session, of which the other end sends back
	// what it gets; nil on TCP.
	echo  net.Conn
	close func()
}

// barrier returns when all that was sent on the session before, and what that was
// answered by, has been taken in at both ends.
func (p *pair) barrier() {
	b := make([]byte, 1)
	for range 2 {
		if _, err := p.echo.Write(b); err != nil {
			break
		}
		if _, err := io.ReadFull(p.echo, b); err != nil {
			break
		}
	}
}

// carrier is what connections go over.
type carrier string

const (
	tcp  carrier = "tcp"
	soft carrier = "soft"
)

func (c carrier) listen() (net.Listener, error) {
	return (&rnet.ListenConfig{Transport: rnet.Transport(c)}).Listen(context.Background(), "tcp", "127.0.0.1:0")
}

func (c carrier) dial(address string) (net.Conn, error) {
	return (&rnet.Dialer{Transport: rnet.Transport(c)}).Dial("tcp", address)
}

// accepted takes the accepted ends of a pair: the connection, and its echo.
func (c carrier) accepted(ln net.Listener) (*local, net.Conn, error) {
	conn, err := ln.Accept()
	if err != nil {
		return nil, nil, err
	}
	end := &local{stream: conn.(stream)}
	if c == tcp {
		return end, nil, nil
	}
	echo, err := ln.Accept()
	if err != nil {
		return nil, nil, err
	}
	go func() {
		io.Copy(struct{ io.Writer }{echo}, struct{ io.Reader }{echo}) // ended by the end of the pair
		echo.Close()
	}()
	return end, echo, nil
}

// dialed makes the dialed ends.
func (c carrier) dialed(address string) (end *local, echo net.Conn, err error) {
	conn, err := c.dial(address)
	if err != nil {
		return nil, nil, err
	}
	if c != tcp {
		if echo, err = c.dial(address); err != nil {
			conn.Close()
			return nil, nil, err
		}
	}
	return &local{stream: conn.(stream)}, echo, nil
}

// world makes pairs.
type world interface {
	pair(carrier) (*pair, error)
	exits() bool // the accepted end is a process of its own, which may end
}

// oneProcess has both ends of its pairs in this process.
type oneProcess map[carrier]net.Listener

func newOneProcess(t *testing.T) world {
	w := oneProcess{}
	for _, c := range []carrier{tcp, soft} {
		ln, err := c.listen()
		require.NoError(t, err)
		t.Cleanup(func() { ln.Close() })
		w[c] = ln
	}
	return w
}

func (oneProcess) exits() bool { return false }

func (w oneProcess) pair(c carrier) (*pair, error) {
	d, echo, err := c.dialed(w[c].Addr().String())
	if err != nil {
		return nil, err
	}
	a, _, err := c.accepted(w[c])
	if err != nil {
		return nil, err
	}
	return &pair{ends: [2]peer{d, a}, echo: echo, close: func() {
		d.Close()
		a.Close()
		if echo != nil {
			echo.Close()
		}
	}}, nil
}

// twoProcesses has the accepted ends in a child.
type twoProcesses struct {
	t     *testing.T
	child *child
}

func newTwoProcesses(t *testing.T) world { return &twoProcesses{t: t} }

func (*twoProcesses) exits() bool { return true }

func (w *twoProcesses) pair(c carrier) (*pair, error) {
	if w.child == nil || w.child.gone {
		child, err := startChild(w.t)
		if err != nil {
			return nil, err
		}
		w.child = child
	}
	d, echo, err := c.dialed(w.child.addresses[c])
	if err != nil {
		return nil, err
	}
	w.child.ask(request{Accept: c})
	return &pair{ends: [2]peer{d, w.child}, echo: echo, close: func() {
		d.Close()
		w.child.ask(request{Call: call{Op: "Close"}})
		if echo != nil {
			echo.Close()
		}
	}}, nil
}

// request is what a child is asked, reply its answer.
type request struct {
	Accept carrier
	Call   call
	Start  bool
	Finish kind
	Status bool
}

type reply struct {
	Outcome outcome
	Status  status
}

// child is the end that lives in another process.
type child struct {
	process   *roles.Process
	conn      net.Conn
	in        *json.Decoder
	out       *json.Encoder
	addresses map[carrier]string
	gone      bool
}

func startChild(t *testing.T) (*child, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	c := &child{process: roles.Start(t, "differential", ln.Addr().String())}
	if c.conn, err = ln.Accept(); err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.conn.Close() })
	c.in, c.out = json.NewDecoder(c.conn), json.NewEncoder(c.conn)
	return c, c.in.Decode(&c.addresses)
}

func (c *child) ask(r request) (answer reply) {
	if c.gone {
		return reply{}
	}
	if err := c.out.Encode(r); err == nil {
		err = c.in.Decode(&answer)
		if err == nil {
			return answer
		}
	}
	c.gone = true
	return reply{Outcome: outcome{Err: "its process has ended"}}
}

func (c *child) do(k call) outcome {
	switch k.Op {
	case "Exit":
		c.out.Encode(request{Call: k})
	case "Kill":
		c.process.Kill()
	default:
		return c.ask(request{Call: k}).Outcome
	}
	c.process.Stop() // returns when it has ended
	c.conn.Close()
	c.gone = true
	return outcome{}
}

func (c *child) start(k call)          { c.ask(request{Call: k, Start: true}) }
func (c *child) finish(k kind) outcome { return c.ask(request{Finish: k}).Outcome }
func (c *child) status() status        { return c.ask(request{Status: true}).Status }

func init() { roles.Add("differential", playChild) }

// playChild does what its parent asks.
func playChild(args []string) error {
	conn, err := net.Dial("tcp", args[0])
	if err != nil {
		return err
	}
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	addresses, listeners := map[carrier]string{}, map[carrier]net.Listener{}
	for _, c := range []carrier{tcp, soft} {
		ln, err := c.listen()
		if err != nil {
			return err
		}
		listeners[c], addresses[c] = ln, ln.Addr().String()
	}
	if err := out.Encode(addresses); err != nil {
		return err
	}
	var end *local
	for {
		var r request
		var answer reply
		if err := in.Decode(&r); err != nil {
			return nil // the parent has gone
		}
		switch {
		case r.Accept != "":
			if end, _, err = r.Accept.accepted(listeners[r.Accept]); err != nil {
				return err
			}
		case r.Status:
			answer.Status = end.status()
		case r.Finish != never:
			answer.Outcome = end.finish(r.Finish)
		case r.Start:
			end.start(r.Call)
		case r.Call.Op == "Exit":
			os.Exit(0)
		default:
			answer.Outcome = end.do(r.Call)
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
}
