package rgnet

import (
	"context"
	"log/slog"

	"github.com/panjf2000/gnet/v2"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
)

// Config is a choice of transport for Run, Rotate and NewClient, which gnet's
// options have no room for. The fields mean what those of rnet.ListenConfig and
// rnet.Dialer mean; the zero value leaves all to the environment.
type Config struct {
	// Transport and Profile take precedence over the environment. With Soft or RDMA TCP
	// peers are reset, and Run fails if there is no such device.
	Transport rnet.Transport
	Profile   rnet.Profile
	// Device is the name of the only device to use, or the only port of it.
	Device string
	// Peers narrows down which processes of the same user, and of those that have the key
	// of RNET_KEY_FILE, may connect by the software HCA; nil means all of them.
	Peers func(rnet.PeerProcess) bool
	// Limits are the sizes of sessions.
	Limits rnet.Limits
	// Logger gets each decision of rnet at debug level.
	Logger *slog.Logger
}

// Run is gnet.Run: it serves handler at the address, "tcp://host:port", until
// the engine is stopped. An address whose scheme is not tcp, tcp4 or tcp6 is left
// to gnet. It fails as gnet's does, and if the environment cannot be read or
// demands a transport that cannot be had.
func Run(handler gnet.EventHandler, protoAddr string, opts ...gnet.Option) error {
	return Config{}.Run(handler, protoAddr, opts...)
}

// Rotate is gnet.Rotate, Run at several addresses.
func Rotate(handler gnet.EventHandler, addrs []string, opts ...gnet.Option) error {
	return Config{}.Rotate(handler, addrs, opts...)
}

// Stop is gnet.Stop: it ends the engine that Run last started at the address,
// and waits until it has ended or ctx is done. As gnet's, it fails with
// ErrEngineInShutdown of gnet's package errors if there is none, and also if the one that
// it ends has ended before it first looks.
//
// Deprecated: gnet has deprecated its own in favor of Engine.Stop, which works
// for an engine of this package too.
func Stop(ctx context.Context, protoAddr string) error {
	return gnet.Stop(ctx, protoAddr) //nolint:staticcheck // it is what we stand in for
}

// Run is Run with this configuration.
func (cfg Config) Run(handler gnet.EventHandler, protoAddr string, opts ...gnet.Option) error {
	return cfg.Rotate(handler, []string{protoAddr}, opts...)
}

// Rotate is Rotate with this configuration.
func (cfg Config) Rotate(handler gnet.EventHandler, addrs []string, opts ...gnet.Option) error {
	return cfg.rotate(handler, addrs, opts)
}

// NewClient makes a client. It fails if the configuration or the environment
// cannot be read.
func NewClient(handler gnet.EventHandler, opts ...gnet.Option) (*Client, error) {
	return Config{}.NewClient(handler, opts...)
}

// settings returns what the configuration and the environment together want.
func (cfg Config) settings() (settings.Settings, error) {
	set, err := settings.Resolve(&settings.Wishes{
		Transport: string(cfg.Transport), Profile: string(cfg.Profile), Device: cfg.Device,
		Limits: settings.Limits(cfg.Limits), Logger: cfg.Logger,
	})
	return *set, err
}

func (cfg Config) listenConfig() *rnet.ListenConfig {
	return &rnet.ListenConfig{
		Transport: cfg.Transport, Profile: cfg.Profile, Device: cfg.Device,
		Peers: cfg.Peers, Limits: cfg.Limits, Logger: cfg.Logger,
	}
}

func (cfg Config) dialer() *rnet.Dialer {
	return &rnet.Dialer{
		Transport: cfg.Transport, Profile: cfg.Profile, Device: cfg.Device,
		Limits: cfg.Limits, Logger: cfg.Logger,
	}
}
