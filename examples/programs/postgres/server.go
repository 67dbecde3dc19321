package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/seed-b9b531af/ramjet/examples/programs/internal/foreign"
	"github.com/seed-b9b531af/ramjet/internal/freeport"
)

// service is a PostgreSQL with an empty database, and the proxy in front of it.
type service struct {
	postgres *foreign.Server
	proxy    *foreign.Proxy
}

// start makes the database and starts both. dir is for the server's files and
// the proxy's program.
func start(ctx context.Context, dir string) (*service, error) {
	program, err := foreign.Find("postgres", "postgresql")
	if err != nil {
		return nil, err
	}
	data, err := initialize(ctx, dir)
	if err != nil {
		return nil, err
	}
	addr, err := freeport.Address("127.0.0.1")
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	s := &service{postgres: &foreign.Server{
		Command: func() *exec.Cmd {
			// Without fsync nothing is lost but by a crash of the machine.
			cmd := exec.Command(program, "-D", data, "-p", port, "-c", "fsync=off",
				"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
			cmd.Dir = data
			foreign.Unprivileged(cmd)
			return cmd
		},
		Ready: func(ctx context.Context) error {
			conn, err := pgx.Connect(ctx, urlOf(addr))
			if err != nil {
				return err
			}
			return conn.Close(ctx)
		},
	}}
	if err := s.postgres.Start(ctx); err != nil {
		return nil, err
	}
	if s.proxy, err = foreign.NewProxy(ctx, dir, addr); err != nil {
		return nil, errors.Join(err, s.postgres.Stop())
	}
	return s, nil
}

// initialize makes the files of a database in dir, for a user "ramjet" who
// needs no password.
func initialize(ctx context.Context, dir string) (data string, err error) {
	program, err := foreign.Find("initdb", "postgresql")
	if err != nil {
		return "", err
	}
	// The server's user has to find its way to its directory.
	if err := os.Chmod(dir, 0o711); err != nil {
		return "", err
	}
	data = filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return "", err
	}
	if err := foreign.GiveAway(data); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, program, "-D", data, "-U", "ramjet", "-A", "trust", "--no-sync", "--no-instructions")
	cmd.Dir = data
	foreign.Unprivileged(cmd)
	if out, err := cmd.CombinedOutput(); err != nil { // ended by initdb, or by ctx
		return "", fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return data, nil
}

func urlOf(addr string) string { return "postgres://ramjet@" + addr + "/postgres?sslmode=disable" }

// restart starts the server again after it was killed. Its children outlive it
// for a moment, in which it cannot be started.
func (s *service) restart(ctx context.Context) error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := s.postgres.Start(ctx)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// url is for clients of the proxy.
func (s *service) url() string { return urlOf(s.proxy.Addr) }

func (s *service) stop() error {
	return errors.Join(s.proxy.Stop(), s.postgres.Stop())
}
