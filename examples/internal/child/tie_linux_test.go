package child_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/internal/thread"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The part "parent" starts a server, says its address, which is its number,
// and waits to be killed.
func init() {
	parts["parent"] = func() int {
		p, err := child.Start(context.Background(), "numbered")
		if err != nil {
			return 1
		}
		fmt.Println(p.Addr)
		select {} // ended by SIGKILL
	}
	parts["numbered"] = func() int {
		fmt.Println(child.Announcement + strconv.Itoa(os.Getpid()))
		time.Sleep(time.Hour) // ended by SIGKILL
		return 0
	}
}

// runs reports whether a process is there, and not only what is left of it until
// somebody asks for it.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

func TestAServerEndsWithAParentThatIsKilled(t *testing.T) {
	parent := exec.Command("/proc/self/exe", "parent")
	parent.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := parent.StdoutPipe()
	require.NoError(t, err)
	gone := make(chan struct{})
	defer close(gone)
	require.NoError(t, child.Tie(parent, gone))
	line, err := bufio.NewReader(stdout).ReadString('\n') // ended by the parent
	require.NoError(t, err)
	server, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	defer syscall.Kill(server, syscall.SIGKILL)
	require.True(t, runs(server))
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait() // that it was killed
	require.Eventually(t, func() bool { return !runs(server) }, 30*time.Second, 5*time.Millisecond)
}

func TestAServerOutlivesTheThreadThatStartedIt(t *testing.T) {
	type result struct {
		p      *child.Process
		err    error
		thread int
	}
	var r result
	thread.Run(func() {
		r.p, r.err = child.Start(t.Context(), "server")
		r.thread = unix.Gettid()
	})
	require.NoError(t, r.err)
	require.Eventually(t, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", r.thread))
		return os.IsNotExist(err)
	}, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, r.p.Stop(), "it was there to be asked to end")
}
