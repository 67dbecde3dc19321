package main

import (
	"context"
	"errors"
	"net"
	"os/exec"

	"github.com/redis/go-redis/v9"
	"github.com/seed-b9b531af/ramjet/examples/programs/internal/foreign"
	"github.com/seed-b9b531af/ramjet/internal/freeport"
)

// service is a redis-server that keeps every write on disk, and the proxy in
// front of it.
type service struct {
	redis *foreign.Server
	proxy *foreign.Proxy
}

// start starts both. dir is for the server's files and the proxy's program.
func start(ctx context.Context, dir string) (*service, error) {
	program, err := foreign.Find("redis-server", "redis-server")
	if err != nil {
		return nil, err
	}
	addr, err := freeport.Address("127.0.0.1")
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	s := &service{redis: &foreign.Server{
		Command: func() *exec.Cmd {
			return exec.Command(program, "--bind", "127.0.0.1", "--port", port, "--dir", dir,
				"--save", "", "--appendonly", "yes", "--appendfsync", "always")
		},
		Ready: func(ctx context.Context) error {
			c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
			defer c.Close()
			return c.Ping(ctx).Err()
		},
	}}
	if err := s.redis.Start(ctx); err != nil {
		return nil, err
	}
	if s.proxy, err = foreign.NewProxy(ctx, dir, addr); err != nil {
		return nil, errors.Join(err, s.redis.Stop())
	}
	return s, nil
}

func (s *service) stop() error {
	return errors.Join(s.proxy.Stop(), s.redis.Stop())
}
