package differential

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

// pair is a connection, both ends.
type pair struct {
	ends [2]peer
	// echo is another stream of the session, of which the other end sends back
	// what it gets; nil where there is none.
	echo  net.Conn
	close func()
}

// barrier returns when all that was sent on the session before, and what that was
// answered by, has been taken in at both ends; without an echo after a pause.
func (p *pair) barrier(pause time.Duration) {
	if p.echo == nil {
		time.Sleep(pause)
		return
	}
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
	tcp       carrier = "tcp"
	soft      carrier = "soft"         // with an echo beside it
	alone     carrier = "without echo" // nobody but the calls themselves makes the session look
	dedicated carrier = "dedicated"    // a session for each connection
)

// listened is what a listener for c is for.
func (c carrier) listened() carrier {
	if c == tcp {
		return tcp
	}
	return soft
}

func (c carrier) listen() (net.Listener, error) {
	return (&rnet.ListenConfig{Transport: rnet.Transport(c)}).Listen(context.Background(), "tcp", "127.0.0.1:0")
}

func listenAll() (map[carrier]net.Listener, error) {
	listeners := map[carrier]net.Listener{}
	for _, c := range []carrier{tcp, soft} {
		ln, err := c.listen()
		if err != nil {
			return nil, err
		}
		listeners[c] = ln
	}
	return listeners, nil
}

func (c carrier) dial(address string) (net.Conn, error) {
	return (&rnet.Dialer{Transport: rnet.Transport(c.listened()), Dedicated: c == dedicated}).Dial("tcp", address)
}

// make makes an end of a pair by next, which dials or accepts, and its echo if there is one.
func (c carrier) make(next func() (net.Conn, error)) (end *local, echo net.Conn, err error) {
	conn, err := next()
	if err != nil {
		return nil, nil, err
	}
	if c == soft {
		if echo, err = next(); err != nil {
			conn.Close()
			return nil, nil, err
		}
	}
	return &local{stream: conn.(stream)}, echo, nil
}

// serveEcho sends back what comes, until the pair ends.
func serveEcho(echo net.Conn) {
	if echo == nil {
		return
	}
	go func() {
		io.Copy(struct{ io.Writer }{echo}, struct{ io.Reader }{echo})
		echo.Close()
	}()
}

// world makes pairs.
type world interface {
	pair(carrier) (*pair, error)
	exits() int // the end that is a process of its own, which may end; -1: none
}

// none is no end.
const none = -1

// oneProcess has both ends of its pairs in this process.
type oneProcess map[carrier]net.Listener

func newOneProcess(t *testing.T) world { return oneProcess(newListeners(t)) }

func newListeners(t *testing.T) map[carrier]net.Listener {
	listeners, err := listenAll()
	require.NoError(t, err)
	for _, ln := range listeners {
		t.Cleanup(func() { ln.Close() })
	}
	return listeners
}

func (oneProcess) exits() int { return none }

func (w oneProcess) pair(c carrier) (*pair, error) {
	ln := w[c.listened()]
	d, echo, err := c.make(func() (net.Conn, error) { return c.dial(ln.Addr().String()) })
	if err != nil {
		return nil, err
	}
	a, back, err := c.make(ln.Accept)
	if err != nil {
		return nil, err
	}
	serveEcho(back)
	return &pair{ends: [2]peer{d, a}, echo: echo, close: func() {
		d.Close()
		a.Close()
		if echo != nil {
			echo.Close()
		}
	}}, nil
}

// twoProcesses has the accepted ends in a child. This process does not listen.
type twoProcesses struct{ children }

func newTwoProcesses(t *testing.T) world { return &twoProcesses{children{t: t}} }

func (*twoProcesses) exits() int { return 1 }

func (w *twoProcesses) pair(c carrier) (*pair, error) {
	child, err := w.living()
	if err != nil {
		return nil, err
	}
	d, echo, err := c.make(func() (net.Conn, error) { return c.dial(child.addresses[c.listened()]) })
	if err != nil {
		return nil, err
	}
	child.ask(request{Accept: c})
	return child.pairWith(d, echo, [2]peer{d, child}), nil
}

// swapped has the dialed ends in a child, which does not use its listeners.
type swapped struct {
	children
	listeners map[carrier]net.Listener
}

func newSwapped(t *testing.T) world { return &swapped{children{t: t}, newListeners(t)} }

func (*swapped) exits() int { return 0 }

func (w *swapped) pair(c carrier) (*pair, error) {
	child, err := w.living()
	if err != nil {
		return nil, err
	}
	ln := w.listeners[c.listened()]
	child.ask(request{Dial: c, Address: ln.Addr().String()})
	if child.gone {
		return nil, errors.New("the child could not dial")
	}
	a, echo, err := c.make(ln.Accept)
	if err != nil {
		return nil, err
	}
	return child.pairWith(a, echo, [2]peer{child, a}), nil
}

// children are the children of a world, one after the other.
type children struct {
	t    *testing.T
	last *child
}

// living returns a child that lives.
func (c *children) living() (*child, error) {
	if c.last == nil || c.last.gone {
		child, err := startChild(c.t)
		if err != nil {
			return nil, err
		}
		c.last = child
	}
	return c.last, nil
}

// pairWith makes a pair of the end that the child has made last and one of this process.
func (c *child) pairWith(end *local, echo net.Conn, ends [2]peer) *pair {
	return &pair{ends: ends, echo: echo, close: func() {
		end.Close()
		c.ask(request{Call: call{Op: "Close"}})
		if echo != nil {
			echo.Close()
		}
	}}
}

// request is what a child is asked, reply its answer.
type request struct {
	Accept  carrier
	Dial    carrier
	Address string // to dial
	Call    call
	Start   bool
	Finish  kind
	Status  bool
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
	listeners, err := listenAll()
	if err != nil {
		return err
	}
	addresses := map[carrier]string{}
	for c, ln := range listeners {
		addresses[c] = ln.Addr().String()
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
			var echo net.Conn
			if end, echo, err = r.Accept.make(listeners[r.Accept.listened()].Accept); err != nil {
				return err
			}
			serveEcho(echo)
		case r.Dial != "":
			var echo net.Conn
			if end, echo, err = r.Dial.make(func() (net.Conn, error) { return r.Dial.dial(r.Address) }); err != nil {
				return err
			}
			serveEcho(echo)
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
