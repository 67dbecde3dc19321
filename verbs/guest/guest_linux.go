package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/wire"
)

// guest is one machine and what it has told so far.
type guest struct {
	machine *machine
	collect []string  // what it may send
	out     io.Writer // the program's standard output
	errs    io.Writer // and its standard error
	notes   func(format string, args ...any)

	began  time.Time
	ready  chan struct{} // closed when the program can start
	done   chan struct{} // closed when the guest has sent its last message or has ended
	status wire.Status   // valid after done, if err is nil
	err    error         // valid after done

	writing sync.Mutex // the port
}

// errEnded is what a guest fails with whose machine ended before it sent its last message.
var errEnded = errors.New("the virtual machine has ended without a result")

// follow reads the guest's messages to the last.
func (g *guest) follow() {
	defer close(g.done)
	g.status, g.err = g.listen()
}

func (g *guest) listen() (wire.Status, error) {
	var file *os.File
	defer func() { file.Close() }()
	reader := bufio.NewReaderSize(g.machine.port, 1<<20)
	for { // until the last message, or QEMU's end, which closes the port
		kind, payload, err := wire.Read(reader)
		if err != nil {
			return wire.Status{}, fmt.Errorf("%w: %w", errEnded, err)
		}
		switch kind {
		case wire.Ready:
			g.notes("%s; %.1f s since the start", payload, time.Since(g.began).Seconds())
			close(g.ready)
		case wire.Stdout:
			g.out.Write(payload)
		case wire.Stderr:
			g.errs.Write(payload)
		case wire.Path:
			file.Close()
			if file, err = g.open(string(payload)); err != nil {
				return wire.Status{}, err
			}
		case wire.Data:
			if file == nil {
				return wire.Status{}, errors.New("the guest has sent a file without a name")
			}
			if _, err := file.Write(payload); err != nil {
				return wire.Status{}, err
			}
		case wire.Exit:
			return wire.ParseStatus(payload)
		case wire.Failed:
			return wire.Status{}, fmt.Errorf("in the guest: %s", payload)
		default:
			return wire.Status{}, fmt.Errorf("the guest has sent a message of kind %q", kind)
		}
	}
}

// crash returns, after done, why the guest has given no result, unless it has
// turned itself off.
func (g *guest) crash() error {
	if g.err == nil {
		return nil
	}
	// The console comes by another way than the port's end, and may be later.
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if strings.Contains(g.machine.console.String(), "reboot: Power down") {
			return nil
		}
	}
	return g.err
}

// open creates a file that the guest sends, if it was asked for.
func (g *guest) open(path string) (*os.File, error) {
	for _, root := range g.collect {
		if path == root || filepath.Clean(path) == path && strings.HasPrefix(path, root+"/") {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return nil, err
			}
			return os.Create(path)
		}
	}
	return nil, fmt.Errorf("the guest has sent %q, which it was not asked for", path)
}

// send sends the guest a message. Errors mean that there is no guest any more,
// which follow finds out by itself.
func (g *guest) send(kind wire.Kind, payload ...byte) {
	g.writing.Lock()
	defer g.writing.Unlock()
	wire.Write(g.machine.port, kind, payload)
}
