package main

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// openTerminal makes a pseudo terminal of 80 columns, and returns both ends.
func openTerminal(t *testing.T) (screen, program *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminal can be had: ", err)
	}
	t.Cleanup(func() { screen.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	program, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminal can be had: ", err)
	}
	t.Cleanup(func() { program.Close() })
	return screen, program
}

func TestQEndsItAndTheTerminalIsAsBefore(t *testing.T) {
	screen, program := openTerminal(t)
	before, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "show")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	require.NoError(t, cmd.Start())

	var shown bytes.Buffer
	seen := make(chan bool, 1)
	go func() {
		part := make([]byte, 4096)
		for {
			n, err := screen.Read(part) // ended by the program, or by Close
			shown.Write(part[:n])
			if strings.Contains(shown.String(), "q quit") {
				seen <- true
				return
			}
			if err != nil {
				seen <- false
				return
			}
		}
	}()
	require.True(t, <-seen, "%q", shown.String()) // ended by the program's first page, or its end
	require.True(t, strings.HasPrefix(shown.String(), openScreen))
	_, err = screen.WriteString("q")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.NoError(t, cmd.Process.Kill())
		t.Fatal("q does not end it")
	}
	after, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	require.NoError(t, err)
	require.Equal(t, before, after)
}
