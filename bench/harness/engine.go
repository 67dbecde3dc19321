package harness

import (
	"cmp"
	"fmt"

	"github.com/panjf2000/gnet/v2"
	"github.com/panjf2000/gnet/v2/pkg/logging"

	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/rgnet"
)

// engine is how a transport serves gnet event handlers: gnet itself over TCP
// and Unix sockets, rgnet over ramjet.
type engine struct {
	network string // as for dial
	place   func(site) (address string, err error)
	run     func(handler gnet.EventHandler, protoAddr string, opts ...gnet.Option) error
	client  func(handler gnet.EventHandler, opts ...gnet.Option) (eventClient, error)
	// describe says what a connection dialed to addr is, and whether it is TCP
	// although that was not asked for.
	describe func(c gnet.Conn, addr string) (nature string, fellBack bool)
}

// eventClient is what gnet's client and rgnet's have in common.
type eventClient interface {
	Start() error
	DialContext(network, address string, ctx any) (gnet.Conn, error)
}

func gnetEngine(network string, place func(site) (string, error)) engine {
	return engine{
		network: network,
		place:   place,
		run:     gnet.Run,
		client: func(handler gnet.EventHandler, opts ...gnet.Option) (eventClient, error) {
			return gnet.NewClient(handler, opts...)
		},
		describe: func(c gnet.Conn, _ string) (string, bool) { return fmt.Sprintf("%T", c), false },
	}
}

// rgnetEngine listens on host, or where the site says.
func rgnetEngine(cfg rgnet.Config, host string) engine {
	return engine{
		network: "tcp",
		place:   func(at site) (string, error) { return freeport.Address(cmp.Or(host, at.Host)) },
		run:     cfg.Run,
		client: func(handler gnet.EventHandler, opts ...gnet.Option) (eventClient, error) {
			return cfg.NewClient(handler, opts...)
		},
		describe: describeStream,
	}
}

// describeStream tells a stream from a TCP connection of gnet's: it has no
// descriptor.
func describeStream(c gnet.Conn, addr string) (nature string, fellBack bool) {
	fellBack = c.Fd() >= 0
	nature = fmt.Sprintf("%T", c)
	if list := rnet.Explain(addr); len(list) > 0 {
		last := list[len(list)-1]
		if nature += fmt.Sprintf(" over the %s transport", last.Transport); fellBack {
			nature += fmt.Sprintf(" (%s: %s)", last.Reason, last.Meaning)
		}
	}
	return nature, fellBack
}

// eventOptions are the options of both ends' engines.
func eventOptions(w workload) []gnet.Option {
	return []gnet.Option{gnet.WithNumEventLoop(w.Loops), gnet.WithLogger(silent{})}
}

// silent takes the place of gnet's logger, which writes to the standard
// output; that belongs to the measured process's replies. What goes wrong the
// handlers are told.
type silent struct{}

var _ logging.Logger = silent{}

func (silent) Debugf(string, ...any) {}
func (silent) Infof(string, ...any)  {}
func (silent) Warnf(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(string, ...any) {}
