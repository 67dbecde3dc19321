package verbsperf

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"   // "soft0"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs" // devices of the kernel
)

// Page is the argument that chooses this page of the command bench.
const Page = "verbs"

// Main is the command with the arguments behind the page's name. It does not return.
func Main(args []string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := Run(ctx, args, os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench verbs:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Run is the command without the process around it.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseOptions(args, stderr)
	if err != nil {
		return err
	}
	if o.Listen != "" {
		return serve(ctx, &o, stdout)
	}
	if o.Dial == "" {
		server, addr, err := startServer(ctx, &o, stderr)
		if err != nil {
			return err
		}
		o.Dial = addr
		defer func() {
			_ = server.Process.Kill() // it has ended if all went well
			_ = server.Wait()
		}()
	}
	return call(ctx, &o, stdout)
}

const announcement = "listening on "

// startServer starts this program as a server that ends with its first client.
func startServer(ctx context.Context, o *options, stderr io.Writer) (*exec.Cmd, string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	cmd := exec.CommandContext(ctx, program, Page, "-listen", "127.0.0.1:0", "-device", o.Device)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	line, err := bufio.NewReader(out).ReadString('\n') // ends with the line, or with the process
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), announcement)
	if err != nil || !ok {
		return nil, "", errors.Join(fmt.Errorf("the server has said %q", line), err, cmd.Process.Kill(), cmd.Wait())
	}
	return cmd, addr, nil
}

// control is the TCP connection between the two ends.
type control struct {
	conn net.Conn
	in   *json.Decoder
	out  *json.Encoder
}

func newControl(conn net.Conn) *control {
	return &control{conn: conn, in: json.NewDecoder(conn), out: json.NewEncoder(conn)}
}

// swap tells the other end something and returns what it tells. It ends at a deadline
// that no measurement reaches.
func swap[T any](c *control, mine T) (theirs T, err error) {
	if err := c.conn.SetDeadline(time.Now().Add(10 * time.Minute)); err != nil {
		return theirs, err
	}
	if err := c.out.Encode(mine); err != nil {
		return theirs, err
	}
	return theirs, c.in.Decode(&theirs)
}

// serve measures what the clients want, one client after the other, until ctx ends.
func serve(ctx context.Context, o *options, out io.Writer) error {
	dev, err := verbs.Open(o.Device)
	if err != nil {
		return err
	}
	defer dev.Close()
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	defer ln.Close()
	fmt.Fprintf(out, "%s%s\n", announcement, ln.Addr())
	for {
		conn, err := ln.Accept() // ends with a client, or with ctx
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := serveClient(ctx, dev, conn); err != nil {
			fmt.Fprintln(os.Stderr, "bench verbs: a client:", err)
		}
	}
}

func serveClient(ctx context.Context, dev *verbs.Context, conn net.Conn) error {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	c := newControl(conn)
	for {
		var sp spec
		if err := c.in.Decode(&sp); err != nil { // ends with a wish, or the client's hang-up
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := sp.check(); err != nil {
			return err
		}
		if _, _, err := one(dev, c, sp, true); err != nil && !errors.Is(err, verbs.ErrUnsupported) {
			return err
		}
	}
}

// call measures all, as the client.
func call(ctx context.Context, o *options, out io.Writer) error {
	dev, err := verbs.Open(o.Device)
	if err != nil {
		return err
	}
	defer dev.Close()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", o.Dial)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	c := newControl(conn)
	var results []result
	last := ""
	for _, sp := range o.specs() {
		if err := c.out.Encode(sp); err != nil {
			return err
		}
		mine, theirs, err := one(dev, c, sp, false)
		if errors.Is(err, verbs.ErrUnsupported) {
			if !o.JSON {
				fmt.Fprintf(out, "\n%s of %d bytes: left out: %v\n", sp.Test, sp.Size, err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("%s of %d bytes: %w", sp.Test, sp.Size, err)
		}
		r := bandwidth(sp, mine, theirs)
		if sp.latency() {
			r = latencies(sp, mine)
		}
		if results = append(results, r); !o.JSON {
			r.print(out, sp.Test != last)
		}
		last = sp.Test
	}
	if o.JSON {
		list := make([]*result, len(results))
		for i := range results {
			list[i] = &results[i]
		}
		return json.NewEncoder(out).Encode(list)
	}
	return nil
}

// outcome is how far an end has come, with what it has measured.
type outcome struct {
	Failed      string
	Unsupported bool
	Times       []time.Duration
}

func outcomeOf(times []time.Duration, err error) outcome {
	if err == nil {
		return outcome{Times: times}
	}
	return outcome{Failed: err.Error(), Unsupported: errors.Is(err, verbs.ErrUnsupported)}
}

func (o *outcome) err() error {
	switch {
	case o.Unsupported:
		return fmt.Errorf("the other end: %s: %w", o.Failed, verbs.ErrUnsupported)
	case o.Failed != "":
		return fmt.Errorf("the other end: %s", o.Failed)
	}
	return nil
}

// one does one measurement. After each step the ends tell each other how it went, so
// that neither waits for one that has failed.
func one(dev *verbs.Context, c *control, sp spec, server bool) (mine, theirs []time.Duration, err error) {
	agree := func(err error) error {
		other, swapped := swap(c, outcomeOf(nil, err))
		if err != nil {
			return err
		}
		return errors.Join(swapped, other.err())
	}
	s, err := newSide(dev, sp)
	if s != nil {
		defer s.close()
	}
	if err := agree(err); err != nil {
		return nil, nil, err
	}
	peer, err := swap(c, s.addresses())
	if err == nil {
		err = s.connect(peer)
	}
	if err := agree(err); err != nil {
		return nil, nil, err
	}
	mine, err = s.measure(server)
	if err != nil { // so that the other end, which may be waiting, learns of it
		for _, qp := range s.qps {
			_ = qp.Fail()
		}
	}
	other, swapped := swap(c, outcomeOf(mine, err))
	if err != nil {
		return nil, nil, err
	}
	return mine, other.Times, errors.Join(swapped, other.err())
}
