//go:build amd64 || arm64

package frame

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/skip"
)

// The test's program is also what runs on the host, as this variable says, and the test runs it
// anew in a PID namespace, where it can say which number the next process gets.
const (
	partVariable     = "RAMJET_FRAME_PART"
	isolatedVariable = "RAMJET_FRAME_ISOLATED"
	testNode         = "/dev/infiniband/test"
)

func TestMain(m *testing.M) {
	Main()
	if part, ok := parts[os.Getenv(partVariable)]; ok {
		if err := part(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(isolatedVariable) != "" {
		if err := mountProc(); err != nil {
			fmt.Println("SKIP:", err)
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

func mountProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("a mount namespace: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("/proc of a PID namespace: %w", err)
	}
	return setLastPID(1000)
}

// setLastPID has the next process get the number behind, if it is free.
func setLastPID(pid int) error {
	return os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid)), 0)
}

// inPIDNamespace says whether the test runs in one of its own. If not, it runs there, and is over.
func inPIDNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(isolatedVariable) != "" {
		return true
	}
	if err := Supported(); err != nil {
		skip.Because(t, err)
	}
	c := Isolated("-test.count=1", "-test.timeout=2m", "-test.v", "-test.run=^"+t.Name()+"$")
	c.SysProcAttr.Cloneflags |= unix.CLONE_NEWPID | unix.CLONE_NEWNS
	c.Env = append(os.Environ(), isolatedVariable+"=1")
	var output bytes.Buffer
	c.Stdout, c.Stderr = &output, &output
	if err := c.Start(); err != nil {
		skip.Because(t, fmt.Errorf("a PID namespace: %w", err))
		return false
	}
	defer context.AfterFunc(t.Context(), func() { _ = c.Process.Kill() })()
	err := c.Wait()
	if why, left := strings.CutPrefix(output.String(), "SKIP:"); left {
		skip.Because(t, fmt.Errorf("%s", strings.TrimSpace(why)))
	}
	require.NoError(t, err, "%s", &output)
	require.Contains(t, output.String(), "--- PASS: "+t.Name()+" ", "the test has run")
	return false
}

// secret is at the same address in all processes of the test's program.
var secret = []byte("untouched")

// parts are what the program does on the host, by the value of its variable.
var parts = map[string]func() error{
	"reuse to open":    func() error { return reuse("open") },
	"reuse for a pipe": func() error { return reuse("pipe") },
	"leave":            leave,
	"open":             func() error { return second(openAgain) },
	"pipe":             func() error { return second(pipeByNumber) },
	"exec":             execute,
	"after exec":       openAfterExec,
}

func part(name string) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), partVariable+"="+name)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return c
}

const wrongNumber = 3 // the exit status of a process that has not got the number

// makeThreads has the runtime make more threads than it will need: one that it made later could get the
// number, and keep it.
func makeThreads() {
	const threads = 16
	var all sync.WaitGroup
	all.Add(threads)
	var over sync.WaitGroup
	for range threads {
		over.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait() // ended by the last of them, each on a thread of its own
		})
	}
	over.Wait()
}

// reuse has a process leave a node open when it ends, and then another one run with its number.
func reuse(next string) error {
	makeThreads()
	if err := setLastPID(20000); err != nil {
		return err
	}
	first := part("leave")
	if err := first.Run(); err != nil {
		return err
	}
	const tries = 50 // a thread may get the number behind
	for range tries {
		c := part(next)
		c.Args = append(c.Args, strconv.Itoa(first.Process.Pid))
		if err := setLastPID(first.Process.Pid - 1); err != nil {
			return err
		}
		if err := c.Run(); c.ProcessState == nil || c.ProcessState.ExitCode() != wrongNumber {
			return err
		}
	}
	return fmt.Errorf("no process has got the number %d again", first.Process.Pid)
}

// open opens the node, and tells where the secret is.
func open() (int, error) {
	fd, err := unix.Open(testNode, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil && fd != firstFD {
		err = fmt.Errorf("the node has number %d", fd)
	}
	if err == nil {
		_, err = unix.Write(fd, le.AppendUint64([]byte("open    "), addressOf(secret)))
	}
	return fd, err
}

// leave opens the node twice, and leaves it open.
func leave() error {
	_, err := open()
	if err == nil {
		_, err = unix.Open(testNode, unix.O_RDWR|unix.O_CLOEXEC, 0)
	}
	return err
}

func second(do func() error) error {
	if os.Args[1] != strconv.Itoa(os.Getpid()) {
		os.Exit(wrongNumber)
	}
	return do()
}

func openAgain() error {
	fd, err := open()
	if err != nil {
		return err
	}
	for { // ends with the test: EAGAIN until what the first process has left is gone
		if _, err = unix.Write(fd, []byte("use     ")); err != unix.EAGAIN {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err == nil && string(secret) != "untouched" {
		err = fmt.Errorf("what the first process has registered was written here: %q", secret)
	}
	return err
}

func pipeByNumber() error {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	if err := unix.Dup3(fds[1], firstFD, unix.O_CLOEXEC); err != nil {
		return err
	}
	text := []byte("to a pipe, not to the node")
	if _, err := unix.Write(firstFD, text); err != nil {
		return err
	}
	got := make([]byte, 2*len(text))
	n, err := unix.Read(fds[0], got)
	if err == nil && !bytes.Equal(got[:n], text) {
		err = fmt.Errorf("the pipe has %q", got[:n])
	}
	return err
}

func execute() error {
	if _, err := open(); err != nil {
		return err
	}
	if err := os.Setenv(partVariable, "after exec"); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", []string{"exec"}, os.Environ())
}

func openAfterExec() error {
	var stat unix.Stat_t
	if err := unix.Fstat(firstFD, &stat); err != unix.EBADF {
		return fmt.Errorf("execve has closed the node, and fstat is %v", err)
	}
	if err := leave(); err != nil {
		return err
	}
	if string(secret) != "untouched" {
		return fmt.Errorf("what the program has registered before was written: %q", secret)
	}
	return nil
}

// A testHost has a node for messages, and all files that were opened, in order.
type testHost struct {
	*testing.T
	Host

	mu    sync.Mutex
	files []*testFile // guarded by mu
	clean bool        // guarded by mu: what the first process has left is gone
}

// A testFile has what was seen of an open file. The host's mutex guards it.
type testFile struct {
	host   *testHost
	owner  *Process
	secret uint64 // its address in owner
	used   int    // messages after the first
	closed int
}

func newTestHost(t *testing.T) *testHost {
	h := &testHost{T: t}
	h.Sysfs = map[string]string{}
	h.Nodes = map[string]Node{testNode: {OpenMessages: func(*EventCount) (MessageFile, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		f := &testFile{host: h}
		h.files = append(h.files, f)
		return f, nil
	}}}
	return h
}

func (f *testFile) Write(m *Message) unix.Errno {
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	switch kind := string(m.Bytes[:8]); {
	case kind == "open    ":
		f.secret = binary.LittleEndian.Uint64(m.Bytes[8:])
		f.owner = m.Process()
		if first := f.host.files[0]; f != first {
			assert.Error(f.host, first.owner.Write(first.secret, []byte("overwrite")), "the memory of the first is gone")
			assert.Equal(f.host, MessageFile(f), m.File(firstFD))
			assert.Nil(f.host, m.File(firstFD+1), "a file that the first has left")
			assert.Error(f.host, first.owner.Read(first.secret, make([]byte, 1)), "the memory of the first is gone")
		}
	case kind == "use     " && !f.host.clean:
		return unix.EAGAIN // a test
	default:
		f.used++
	}
	return 0
}

func (f *testFile) Close() {
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	f.closed++
}

// run runs a part of the program on the host.
func (h *testHost) run(name string) {
	h.Helper()
	var output bytes.Buffer
	p, err := h.Start([]string{os.Args[0]}, []string{partVariable + "=" + name}, &output, &output)
	require.NoError(h, err)
	defer context.AfterFunc(h.Context(), p.Kill)()
	err = p.Wait()
	require.NoError(h, err, "%s", &output)
	for i, f := range h.files {
		require.Equal(h, 1, f.closed, "file %d", i)
	}
	require.Empty(h, p.files)
}

// The number of a process that has left a node open is another one's before the model has cleaned
// up after the first: the second process gets a file of its own, and keeps it.
func TestAProcessWithTheNumberOfAnotherHasItsOwnFiles(t *testing.T) {
	if !inPIDNamespace(t) {
		return
	}
	h := newTestHost(t)
	opened := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.files) == 3 && h.files[2].owner != nil
	}
	var once sync.Once
	h.ended = func(*Program) {
		once.Do(func() {
			for start := time.Now(); !opened() && time.Since(start) < 30*time.Second; time.Sleep(time.Millisecond) {
			}
			time.AfterFunc(50*time.Millisecond, func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.clean = true
			})
		})
	}
	h.run("reuse to open")
	require.Len(t, h.files, 3)
	require.Equal(t, 1, h.files[2].used)
}

// The same, if the second process has something else by the number of the node.
func TestAProcessWithTheNumberOfAnotherHasNotItsFiles(t *testing.T) {
	if !inPIDNamespace(t) {
		return
	}
	h := newTestHost(t)
	h.ended = func(p *Program) { <-p.ended }
	h.run("reuse for a pipe")
	require.Len(t, h.files, 2)
	require.Zero(t, h.files[0].used)
}

// execve closes the nodes, of which the model is not told, and replaces the memory.
func TestAProgramThatExecutesAnotherHasNoNodeLeft(t *testing.T) {
	if err := Supported(); err != nil {
		skip.Because(t, err)
	}
	h := newTestHost(t)
	h.run("exec")
	require.Len(t, h.files, 3)
}
