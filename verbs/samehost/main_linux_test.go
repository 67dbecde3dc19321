package samehost

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// roleVariable names the part that a child process plays, and the name of a socket.
const roleVariable = "SAMEHOST_TEST_ROLE"

func TestMain(m *testing.M) {
	if role, name, ok := strings.Cut(os.Getenv(roleVariable), " "); ok {
		play(role, name)
	}
	leak.Main(m)
}

// play says what comes of a role, a line each.
func play(role, name string) {
	switch role {
	case "check":
		fmt.Println(CheckUser())
	case "listen":
		l, err := Listen(ListenConfig{
			Type: unix.SOCK_SEQPACKET, Name: name, Backlog: 8,
			Denied: func(p Peer) { fmt.Println("denied user", p.UID) },
		})
		fmt.Println(err)
		for err == nil {
			if _, err = l.Accept(); err == nil { // ended by a peer, or the end of the process
				fmt.Println("admitted")
			}
		}
	case "names":
		names, err := namesSeen(nil)
		fmt.Println(err, names)
	case "squat":
		_, err := Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Name: name})
		fmt.Println(err)
		// ended by the test; without cgo a select of nothing would be a deadlock
		time.Sleep(time.Hour)
	case "dial":
		_, err := Dial(unix.SOCK_SEQPACKET, nil, name)
		fmt.Println(err)
	case "ask":
		c, err := Dial(unix.SOCK_SEQPACKET, nil, name)
		if err == nil {
			fmt.Println(c.Cgroup())
		} else {
			fmt.Println(err)
		}
	}
	os.Exit(0)
}

// overflow is the overflow user, unless /proc/sys/kernel/overflowuid says otherwise.
const overflow = 65534

// asOverflow runs a child as the overflow user of a user namespace that has no
// other: everybody else looks like that to it.
func asOverflow(cmd *exec.Cmd) {
	ids := []syscall.SysProcIDMap{{ContainerID: overflow, HostID: 1000, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
		Credential: &syscall.Credential{Uid: overflow, Gid: overflow, NoSetGroups: true},
	}
}

// asUser runs a child as a user of this namespace.
func asUser(uid uint32) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
}

// start starts a child, which is killed when the test ends. Where the rights for
// change are missing the test is left out.
func start(t *testing.T, change func(*exec.Cmd), role, name string) *bufio.Scanner {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"="+role+" "+name)
	cmd.Stderr = os.Stderr
	change(cmd)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	if err := cmd.Start(); errors.Is(err, syscall.EPERM) {
		skip.Because(t, fmt.Errorf("it needs the rights of root: %w", err))
	} else {
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return bufio.NewScanner(out)
}

func line(t *testing.T, s *bufio.Scanner) string {
	t.Helper()
	require.True(t, s.Scan(), "the child has ended")
	return s.Text()
}
