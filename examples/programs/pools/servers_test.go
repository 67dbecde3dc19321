//go:build linux

package pools

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/examples/programs/internal/foreign"
	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// behindProxy starts a server of the program, and examples/proxy in front of it.
func behindProxy(t *testing.T, program, pkg string, command func(path, port, dir string) *exec.Cmd, ready func(ctx context.Context, addr string) error) (
	server *foreign.Server, direct, proxied string) {
	t.Helper()
	path, err := foreign.Find(program, pkg)
	skip.Because(t, err)
	dir, err := os.MkdirTemp("", program) // t.TempDir is closed to other users
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o711))
	direct, err = freeport.Address("127.0.0.1")
	require.NoError(t, err)
	_, port, _ := net.SplitHostPort(direct)
	server = &foreign.Server{
		Command: func() *exec.Cmd { return command(path, port, dir) },
		Ready:   func(ctx context.Context) error { return ready(ctx, direct) },
	}
	require.NoError(t, server.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, server.Kill()) })
	proxy, err := foreign.NewProxy(t.Context(), dir, direct)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Stop()) })
	return server, direct, proxy.Addr
}

// lastDialed is a dialer that knows which connection it made last.
type lastDialed struct {
	rnet.Dialer
	conn atomic.Pointer[net.Conn]
}

func (d *lastDialed) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.DialContext(ctx, network, address)
	if err == nil {
		d.conn.Store(&c)
	}
	return c, err
}

// closed waits until the end of that connection has arrived: what the server says before it counts.
func (d *lastDialed) closed(t *testing.T) {
	t.Helper()
	hang.Eventually(t, "the server's end of the connection", func() bool {
		raw, err := (*d.conn.Load()).(syscall.Conn).SyscallConn()
		require.NoError(t, err)
		arrived := false
		err = raw.Read(func(fd uintptr) bool {
			var b [1]byte
			_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
			arrived = err != syscall.EAGAIN
			return true
		})
		return err != nil || arrived
	})
}

// What MariaDB closes, for each of its reasons, go-sql-driver/mysql detects before it sends a
// statement, which it would not send twice.
func TestTheMySQLDriverNoticesWhatMariaDBHasClosed(t *testing.T) {
	t.Parallel()
	data := ""
	server, direct, proxied := behindProxy(t, "mariadbd", "mariadb-server-core", func(path, port, dir string) *exec.Cmd {
		if data == "" {
			data = filepath.Join(dir, "data")
			require.NoError(t, os.Mkdir(data, 0o700))
			require.NoError(t, foreign.GiveAway(data))
		}
		cmd := exec.Command(path, "--no-defaults", "--skip-grant-tables", "--skip-innodb", "--default-storage-engine=MyISAM", "--datadir="+data, "--bind-address=127.0.0.1", "--port="+port,
			"--socket=", "--pid-file="+filepath.Join(data, "pid"))
		foreign.Unprivileged(cmd)
		return cmd
	}, func(ctx context.Context, addr string) error {
		db, err := sql.Open("mysql", fmt.Sprintf("root@tcp(%s)/", addr))
		if err != nil {
			return err
		}
		defer db.Close()
		return db.PingContext(ctx)
	})
	admin, err := sql.Open("mysql", fmt.Sprintf("root@tcp(%s)/", direct))
	require.NoError(t, err)
	defer admin.Close()
	overEach(t, func(t *testing.T, transport rnet.Transport) {
		dialer := &lastDialed{Dialer: rnet.Dialer{Transport: transport}}
		network := "behind-proxy-" + string(transport)
		mysql.RegisterDialContext(network, func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.dial(ctx, "tcp", address)
		})
		db, err := sql.Open("mysql", fmt.Sprintf("root@%s(%s)/", network, proxied))
		require.NoError(t, err)
		defer db.Close()
		db.SetMaxOpenConns(1)
		// connection is the server's number for the pool's only connection.
		connection := func() (id int64) {
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id))
			return id
		}
		for _, end := range []struct {
			why string
			now func(id int64)
		}{
			{"KILL", func(id int64) {
				_, err := admin.ExecContext(t.Context(), "KILL "+strconv.FormatInt(id, 10))
				require.NoError(t, err)
			}},
			{"wait_timeout", func(int64) {
				_, err := db.ExecContext(t.Context(), "SET SESSION wait_timeout = 1")
				require.NoError(t, err)
			}},
			{"a restart", func(int64) {
				require.NoError(t, server.Kill())
				require.NoError(t, server.Start(t.Context()))
			}},
		} {
			before := connection()
			end.now(before)
			dialer.closed(t)
			_, err := db.ExecContext(t.Context(), "DO 1")
			require.NoError(t, err, end.why)
			require.Equal(t, connection(), connection(), end.why)
		}
	})
}

// The same of Redis and go-redis.
func TestGoRedisNoticesWhatRedisHasClosed(t *testing.T) {
	t.Parallel()
	server, direct, proxied := behindProxy(t, "redis-server", "redis-server", func(path, port, dir string) *exec.Cmd {
		return exec.Command(path, "--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", "")
	}, func(ctx context.Context, addr string) error {
		c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
		defer c.Close()
		return c.Ping(ctx).Err()
	})
	admin := redis.NewClient(&redis.Options{Addr: direct})
	defer admin.Close()
	overEach(t, func(t *testing.T, transport rnet.Transport) {
		dialer := &lastDialed{Dialer: rnet.Dialer{Transport: transport}}
		db := redis.NewClient(&redis.Options{Addr: proxied, PoolSize: 1, MaxRetries: -1, DialerRetries: 1, Dialer: dialer.dial})
		defer db.Close()
		for _, end := range []struct {
			why string
			now func(id int64)
		}{
			{"CLIENT KILL", func(id int64) {
				require.NoError(t, admin.ClientKillByFilter(t.Context(), "ID", strconv.FormatInt(id, 10)).Err())
			}},
			{"timeout", func(int64) {
				require.NoError(t, admin.ConfigSet(t.Context(), "timeout", "1").Err())
				// also if the server is gone
				t.Cleanup(func() { admin.ConfigSet(context.Background(), "timeout", "0") })
			}},
			{"a restart", func(int64) {
				require.NoError(t, server.Kill())
				require.NoError(t, server.Start(t.Context()))
			}},
		} {
			id, err := db.ClientID(t.Context()).Result()
			require.NoError(t, err)
			end.now(id)
			dialer.closed(t)
			require.NoError(t, db.Ping(t.Context()).Err(), end.why)
		}
	})
}
