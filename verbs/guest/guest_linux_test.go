package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// programVariable names the guest program; with it the tests that boot guests run.
const programVariable = "RAMJET_GUEST"

// hangVariable makes this test binary hang, in a guest.
const hangVariable = "RAMJET_HANG"

func TestMain(m *testing.M) {
	if os.Getenv(hangVariable) != "" {
		hang()
	}
	os.Exit(m.Run())
}

//go:noinline
func hang() {
	fmt.Println("it hangs")
	time.Sleep(time.Hour) // until the guest is stopped
}

// guestCommand returns a command that runs the guest program.
func guestCommand(t *testing.T, args ...string) *exec.Cmd {
	program, ok := os.LookupEnv(programVariable)
	if !ok {
		t.Skipf("%s does not name the guest program: no guest is booted", programVariable)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.WaitDelay = time.Minute
	return cmd
}

// runGuest runs the guest program and returns what it printed and its status.
func runGuest(t *testing.T, args ...string) (out, errs string, status int) {
	t.Helper()
	cmd := guestCommand(t, args...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

func TestStatusAndOutputComeOutOfTheGuest(t *testing.T) {
	script := "echo to the error >&2; seq 1000000; exit 7"
	out, errs, status := runGuest(t, "-devices", "none", "--", "sh", "-c", script)
	require.Equal(t, 7, status)
	require.Equal(t, "to the error\n", errs)
	lines := strings.Split(out, "\n")
	require.Len(t, lines, 1000001)
	for i, line := range lines[:1000000] {
		if line != fmt.Sprint(i+1) {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
}

func TestTheLastOfSeveralVariablesCounts(t *testing.T) {
	out, errs, status := runGuest(t, "-devices", "none", "-env", "HOME=/here", "-env", "HOME=/there", "--", "env")
	require.Zero(t, status, errs)
	require.Contains(t, out, "HOME=/there\n")
	require.Equal(t, 1, strings.Count(out, "HOME="), "of two C and Go take the first: %s", out)
}

func TestSignalsDeathComesOutOfTheGuest(t *testing.T) {
	_, errs, status := runGuest(t, "-devices", "none", "--", "sh", "-c", "kill -9 $$")
	require.Equal(t, 128+9, status)
	require.Contains(t, errs, "killed by signal 9")
}

func TestPanicOfTheKernelIsAFailureThatShowsTheConsole(t *testing.T) {
	_, errs, status := runGuest(t, "-devices", "none", "--", "sh", "-c", "echo c >/proc/sysrq-trigger; sleep 60")
	require.Equal(t, failure, status)
	require.Contains(t, errs, "sysrq triggered crash")
}

func TestComplaintOfTheKernelIsShown(t *testing.T) {
	// The log takes lines from programs too, and this is one as the kernel writes it.
	_, errs, status := runGuest(t, "-devices", "none", "--", "sh", "-c", "echo '<4>WARNING: CPU: 0' >/dev/kmsg")
	require.Zero(t, status)
	require.Contains(t, errs, "the kernel has complained")
	require.Contains(t, errs, "WARNING: CPU: 0")
}

func TestDeviceThatCannotBeMadeIsAFailure(t *testing.T) {
	// There is one rxe to an interface.
	out, errs, status := runGuest(t, "-devices", "rxe0,rxe1", "--", "echo", "has run")
	require.Equal(t, failure, status)
	require.NotContains(t, out, "has run")
	require.Contains(t, errs, "link add rxe1 type rxe")
}

func TestCommandThatIsMissingIsAFailure(t *testing.T) {
	_, errs, status := runGuest(t, "-devices", "none", "--", "nosuch")
	require.Equal(t, failure, status)
	require.Contains(t, errs, "nosuch")
}

func TestTimeLimitOfTheBootIsKept(t *testing.T) {
	_, errs, status := runGuest(t, "-boot-timeout", "100ms", "--", "true")
	require.Equal(t, failure, status)
	require.Equal(t, boots, strings.Count(errs, "has not booted within 100ms"), errs)
	require.Equal(t, boots-1, strings.Count(errs, "booted once more"), errs)
}

func TestGuestThatHangsSaysWhere(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	out, errs, status := runGuest(t, "-devices", "none", "-timeout", "2s", "-env", hangVariable+"=1",
		self, "-test.v=true")
	require.Equal(t, failure, status)
	require.Contains(t, errs, "has not ended within 2s")
	require.Contains(t, out+errs, "SIGQUIT")
	require.Contains(t, out+errs, "guest.hang(")
}

func TestFileThatIsCopiedToACommandTakesThePlaceOfNoOther(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("content"), 0o644))
	out, errs, status := runGuest(t, "-devices", "none", "-file", file+":/bin/file", "--", "/bin/cat", "/bin/file")
	require.Zero(t, status, errs)
	require.Equal(t, "content", out)
}

func TestFilesOfGoTestComeOutOfTheGuest(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	profile := filepath.Join(t.TempDir(), "memory")
	out, errs, status := runGuest(t, "-devices", "none", self, "-test.run=^TestModule", "-test.v=true", "-test.memprofile="+profile)
	require.Zero(t, status, "%s%s", out, errs)
	require.Contains(t, out, "--- PASS: TestModulesComeAfterWhatTheyNeed")
	info, err := os.Stat(profile)
	require.NoError(t, err)
	require.NotZero(t, info.Size())
}

func TestPeersFailureIsThePairs(t *testing.T) {
	out, errs, status := runGuest(t, "-pair", "--", "sh", "-c", `echo I am "$RAMJET_ROLE"; test "$RAMJET_ROLE" != peer`)
	require.Equal(t, failure, status)
	require.Equal(t, "I am \n", out)
	require.Contains(t, errs, "I am peer")
	require.Contains(t, errs, "peer: exit status 1")
}

func TestPeerThatTurnsItselfOffIsNoFailure(t *testing.T) {
	out, errs, status := runGuest(t, "-pair", "--", "sh", "-c",
		`test "$RAMJET_ROLE" = peer && poweroff -f; while ping -c 1 -W 1 $RAMJET_PEER >/dev/null; do :; done; echo it is off`)
	require.Zero(t, status, errs)
	require.Equal(t, "it is off\n", out)
}

func TestPeersPanicEndsThePair(t *testing.T) {
	_, errs, status := runGuest(t, "-pair", "--", "sh", "-c",
		`test "$RAMJET_ROLE" = peer && echo c >/proc/sysrq-trigger; sleep 600`)
	require.Equal(t, failure, status)
	require.Contains(t, errs, "sysrq triggered crash")
}

// That the peer fails without it is no news.
func TestPanicOfTheFirstIsWhatIsTold(t *testing.T) {
	_, errs, status := runGuest(t, "-pair", "--", "sh", "-c",
		`test "$RAMJET_ROLE" = peer || echo c >/proc/sysrq-trigger; while ping -c 1 -W 1 $RAMJET_PEER; do :; done; exit 1`)
	require.Equal(t, failure, status)
	require.Contains(t, errs, "guest: "+errEnded.Error())
}

func TestPeersKernelOutlivesItsProgram(t *testing.T) {
	out, errs, status := runGuest(t, "-pair", "--", "sh", "-c", `test "$RAMJET_ROLE" = peer || ping -c 15 $RAMJET_PEER`)
	require.Zero(t, status, errs)
	require.Contains(t, out, "15 packets received")
}

// What a terminal sends all processes of its group the machine does not get.
func TestProgramThatIsStoppedAtATerminalSaysWhereItIs(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := guestCommand(t, "-devices", "none", "-env", hangVariable+"=1", self)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	reader := bufio.NewReader(out)
	line, err := reader.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "it hangs\n", line)
	require.NoError(t, unix.Kill(-cmd.Process.Pid, unix.SIGQUIT))
	rest, err := io.ReadAll(reader)
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	require.Contains(t, errs.String(), "stopped by a signal: quit")
	require.Contains(t, string(rest)+errs.String(), "guest.hang(")
}

func TestNoMachineOutlivesTheProgram(t *testing.T) {
	for name, number := range map[string]unix.Signal{"interrupted": unix.SIGINT, "killed": unix.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			cmd := guestCommand(t, "-devices", "none", "--", "sleep", "600")
			require.NoError(t, cmd.Start())
			var machine int
			require.Eventually(t, func() bool {
				machine = childOf(cmd.Process.Pid)
				return machine != 0
			}, time.Minute, 20*time.Millisecond)
			require.NoError(t, cmd.Process.Signal(number))
			require.Error(t, cmd.Wait())
			require.Eventually(t, func() bool {
				return errors.Is(unix.Kill(machine, 0), syscall.ESRCH)
			}, time.Minute, 20*time.Millisecond)
		})
	}
}

// childOf returns the process number of the QEMU that a process has started, or 0.
func childOf(parent int) int {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		var pid, ppid int
		var name, state string
		fmt.Sscan(string(text), &pid, &name, &state, &ppid)
		if ppid == parent && strings.HasPrefix(name, "(qemu") {
			return pid
		}
	}
	return 0
}
