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
	"strconv"
	"strings"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"   // "soft0"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs" // devices of the kernel
)

// Page is the argument that chooses this page of the command bench.
const Page = "verbs"

// Main is the command with the arguments behind the page's name. It does not return.
func Main(args []string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the next one ends the process at once
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
	dev, at, err := open(&o)
	if err != nil {
		return err
	}
	defer dev.Close()
	if o.Listen != "" {
		if o.Tied {
			ctx = untilEOF(ctx, os.Stdin)
		}
		return serve(ctx, dev, at, &o, stdout, stderr)
	}
	specs := o.specs()
	for _, sp := range specs { // before any work is done
		if err := sp.fits(dev.Attr(), at.port); err != nil {
			return err
		}
	}
	if o.Dial == "" {
		server, addr, err := startServer(ctx, &o, stderr)
		if err != nil {
			return err
		}
		o.Dial = addr
		defer func() {
			_ = server.Process.Kill()
			_ = server.Wait()
		}()
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", o.Dial)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	return call(&meeting{ctx: ctx, dev: dev, place: at, control: newControl(conn)}, specs, &o, stdout, stderr)
}

const announcement = "listening on "

// untilEOF returns a context that ends when in does.
func untilEOF(ctx context.Context, in io.Reader) context.Context {
	ctx, end := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, in)
		end()
	}()
	return ctx
}

// startServer starts this program as a server that ends with this process, however that ends: it
// reads from a pipe whose other end we have.
func startServer(ctx context.Context, o *options, stderr io.Writer) (*exec.Cmd, string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	cmd := exec.CommandContext(ctx, program, Page, "-tied", "-listen", "127.0.0.1:0", "-device", o.Device, "-gid", strconv.Itoa(o.GID))
	cmd.Stderr = stderr
	if _, err := cmd.StdinPipe(); err != nil { // closed by Wait, and by our end
		return nil, "", err
	}
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

// open opens the device.
func open(o *options) (*verbs.Context, place, error) {
	dev, err := verbs.Open(o.Device)
	if err != nil {
		return nil, place{}, err
	}
	at, err := placeOf(dev, o.GID)
	if err != nil {
		return nil, at, errors.Join(err, dev.Close())
	}
	return dev, at, nil
}

// call measures all, as the client.
func call(m *meeting, specs []spec, o *options, out, complaints io.Writer) error {
	if !o.JSON {
		complaints = out
	}
	page := page{device: m.dev.Name()}
	leftOut := ""
	for _, sp := range specs {
		if sp.Test == leftOut {
			continue
		}
		r, err := m.ask(sp)
		if errors.Is(err, verbs.ErrUnsupported) {
			leftOut = sp.Test
			fmt.Fprintf(complaints, "\n%s: left out: %v\n", sp.Test, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s of %d bytes: %w", sp.Test, sp.Size, err)
		}
		if !o.JSON {
			r.print(out, !page.goesOn(r))
		}
		page.results = append(page.results, r)
	}
	if o.JSON {
		if err := json.NewEncoder(out).Encode(page.results); err != nil {
			return err
		}
	}
	if o.SVG != "" {
		return os.WriteFile(o.SVG, page.draw(), 0o666)
	}
	return nil
}
