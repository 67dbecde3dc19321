package inside

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/wire"
)

// lateOutput is how long output may still come after the program's end, from
// processes which it has left behind.
const lateOutput = time.Second

// sharedPort is the port with a lock, so that messages of two streams do not mix.
type sharedPort struct {
	mu   sync.Mutex
	file *os.File
}

func (p *sharedPort) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.file.Write(b)
}

// run runs the job's program to its end and sends its output on the way.
func run(job wire.Job, file *os.File) (wire.Status, error) {
	port := &sharedPort{file: file}
	path, err := exec.LookPath(job.Program)
	if err != nil {
		return wire.Status{}, err
	}
	limit := unix.Rlimit{Cur: job.Memlock, Max: job.Memlock}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return wire.Status{}, fmt.Errorf("set RLIMIT_MEMLOCK: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return wire.Status{}, err
	}
	defer null.Close()
	var forwards sync.WaitGroup
	out, err := forward(port, wire.Stdout, &forwards)
	if err != nil {
		return wire.Status{}, err
	}
	errors := out
	if !job.Merge {
		if errors, err = forward(port, wire.Stderr, &forwards); err != nil {
			return wire.Status{}, err
		}
	}
	process, err := os.StartProcess(path, append([]string{job.Program}, job.Args...), &os.ProcAttr{
		Dir:   job.Dir,
		Files: []*os.File{null, out, errors},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	out.Close()
	errors.Close()
	if err != nil {
		return wire.Status{}, err
	}
	go takeSignals(file, process.Pid)
	status, err := reap(process.Pid)
	if err != nil {
		return wire.Status{}, err
	}
	drained := make(chan struct{})
	go func() {
		forwards.Wait()
		close(drained)
	}()
	select {
	case <-drained: // all writers of the pipes have gone
	case <-time.After(lateOutput):
		port.mu.Lock() // for good: the last message must be the last
	}
	return status, nil
}

// forward returns the writing end of a pipe whose other end goes to the host.
func forward(port io.Writer, kind wire.Kind, forwards *sync.WaitGroup) (*os.File, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	forwards.Go(func() {
		buffer := make([]byte, wire.MaxPayload)
		for { // until the last process that holds the writing end has closed it
			n, err := reader.Read(buffer)
			if n > 0 && wire.Write(port, kind, buffer[:n]) != nil || err != nil {
				return
			}
		}
	})
	return writer, nil
}

// takeSignals delivers signals from the host, until the machine ends.
func takeSignals(port io.Reader, pid int) {
	reader := bufio.NewReader(port)
	for {
		kind, payload, err := wire.Read(reader)
		if err != nil {
			return
		}
		if kind == wire.Signal && len(payload) == 1 {
			unix.Kill(pid, unix.Signal(payload[0]))
		}
	}
}

// reap waits for the end of the program, and meanwhile for that of processes without a parent,
// as the first process has to.
func reap(program int) (wire.Status, error) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return wire.Status{}, fmt.Errorf("wait for the program: %w", err)
		case pid == program && status.Signaled():
			return wire.Status{Signal: uint8(status.Signal())}, nil
		case pid == program && status.Exited():
			return wire.Status{Code: uint8(status.ExitStatus())}, nil
		}
	}
}

// sendFiles sends the files that the host has asked for and that exist.
func sendFiles(port io.Writer, paths []string) error {
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			return sendFile(port, path)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func sendFile(port io.Writer, path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := wire.Write(port, wire.Path, []byte(path)); err != nil {
		return err
	}
	return wire.Write(port, wire.Data, content)
}
