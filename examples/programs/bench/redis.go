package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/seed-b9b531af/ramjet/bench/harness"
)

// goRedis are ECHO commands of a go-redis client, which has a connection for
// each call at a time. A redis-server takes no listener of ours, so the server
// is one that knows the protocol and this command.
var goRedis = harness.Program{
	Name:  "redis",
	Title: "go-redis",
	Serve: func(ln net.Listener, fail func(error)) (func(), error) {
		go harness.AcceptUntilClosed(ln, fail, answerCommands) // ended by the Close below
		return func() { ln.Close() }, nil
	},
	Connect: func(dial harness.Dial, calls int) (harness.Client, error) {
		db := redis.NewClient(&redis.Options{
			Dialer:          func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			Protocol:        2,
			DisableIdentity: true,
			PoolSize:        calls,
			MaxRetries:      -1, // a failure is to be seen
		})
		// All connections at once, so that no call dials.
		ctx := context.Background()
		conns := make([]*redis.Conn, calls)
		var errs error
		for i := range conns {
			conns[i] = db.Conn()
			errs = errors.Join(errs, conns[i].Ping(ctx).Err())
		}
		for _, c := range conns {
			errs = errors.Join(errs, c.Close()) // back into the pool
		}
		if errs != nil {
			db.Close()
			return nil, errs
		}
		return redisClient{db}, nil
	},
}

type redisClient struct{ db *redis.Client }

func (c redisClient) Call(_ int, message, answer []byte) error {
	got, err := c.db.Echo(context.Background(), message).Bytes()
	if err != nil {
		return err
	}
	return take(answer, got)
}

func (c redisClient) Close() error { return c.db.Close() }

// longestArgument of a command, in bytes.
const longestArgument = 1 << 20

// answerCommands answers until the client closes.
func answerCommands(conn net.Conn) error {
	in, out := bufio.NewReader(conn), bufio.NewWriter(conn)
	for {
		command, err := readCommand(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		switch name := strings.ToUpper(string(command[0])); {
		case name == "ECHO" && len(command) == 2:
			fmt.Fprintf(out, "$%d\r\n%s\r\n", len(command[1]), command[1])
		case name == "PING":
			out.WriteString("+PONG\r\n")
		default:
			fmt.Fprintf(out, "-ERR unknown command '%s'\r\n", name)
		}
		if in.Buffered() > 0 {
			continue // more commands of a pipeline
		}
		if err := out.Flush(); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
}

// readCommand reads an array of bulk strings, of which there is at least one.
func readCommand(in *bufio.Reader) ([][]byte, error) {
	n, err := readCount(in, '*')
	if err != nil {
		return nil, err
	}
	if n < 1 || n > 16 {
		return nil, fmt.Errorf("a command of %d strings", n)
	}
	command := make([][]byte, n)
	for i := range command {
		size, err := readCount(in, '$')
		if err != nil {
			return nil, noEOF(err)
		}
		if size < 0 || size > longestArgument {
			return nil, fmt.Errorf("a string of %d bytes", size)
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, noEOF(err)
		}
		command[i] = text[:size]
	}
	return command, nil
}

// readCount reads a line that is the mark and a number.
func readCount(in *bufio.Reader, mark byte) (int, error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		if len(line) > 0 {
			err = noEOF(err)
		}
		return 0, err
	}
	if len(line) < 3 || line[0] != mark {
		return 0, fmt.Errorf("%q where a line that begins with %q was due", line, mark)
	}
	return strconv.Atoi(string(line[1 : len(line)-2]))
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
