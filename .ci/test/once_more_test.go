package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// failures are bodies of a test of a package whose TestMain knows of a leak. Each runs in a process that finds
// whether it is the first.
var failures = []struct {
	name, body string
	passes     bool
}{
	{"fails once", `if first { t.Error("late") }`, true},
	{"a subtest fails once", `t.Run("sub", func(t *testing.T) { if first { t.Error("late") } })`, true},
	{"fails each time", `t.Error("wrong")`, false},
	{"fails each time, behind a line that has no end", `if first { fmt.Print("so ") }; t.Fail()`, false},
	{"is left out the second time", `if first { t.Error("late") }; t.Skip("not now")`, false},
	{"panics once", `if first { panic("wrong") }`, false},
	{"ends the process once", `if first { os.Exit(1) }`, false},
	{"has a child that panics once", `if first { t.Error("exit status 2, panic: wrong") }`, false},
	{"has a child that races once", `if first { t.Error("exit status 66") }`, false},
	{tooLong, `if first { time.Sleep(time.Hour) }`, false},
	{"leaks", `leak = first`, false},
	{"does not build", `wrong`, false},
}

const tooLong = "takes too long once"

const flaky = `package flaky

import (
	"fmt"
	"os"
	"testing"
	"time"
)

var first, leak bool

func TestOther(t *testing.T) { if first { t.Error("late, too") } }

func TestFlaky(t *testing.T) { %s }

func TestMain(m *testing.M) {
	_, err := os.Stat("again")
	first = err != nil
	os.WriteFile("again", nil, 0o600)
	code := m.Run()
	if leak {
		fmt.Println("leak: something")
		code = 1
	}
	os.Exit(code)
}

var _ = time.Now
`

// CI runs tests once more that have failed. It must pass over nothing but failures that are not there again.
func TestOnlyWhatATestHasAgainstItselfOnceIsPassedOver(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it is bash and awk of Debian")
	}
	run, err := filepath.Abs("../run")
	require.NoError(t, err)
	const script = `set -euo pipefail
repeated=repeated
eval "$(sed -n '/^go_test() {/,/^passed=0/p; /^once_more() {/,/^}/p; /^again() {/,/^}/p' "$0")"
flags=(-timeout "$1")
go_test "${flags[@]}" ./... || once_more go_test "${flags[@]}"
`
	for _, f := range failures {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write := func(name, text string) {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			write("go.mod", "module example.com/flaky\n\ngo 1.24\n")
			write("flaky_test.go", fmt.Sprintf(flaky, f.body))
			timeout := "10m"
			if f.name == tooLong {
				timeout = "100ms"
			}
			c := exec.CommandContext(t.Context(), "bash", "-c", script, run, timeout)
			c.Dir = dir
			out, err := c.CombinedOutput()
			require.Equal(t, f.passes, err == nil, "%s", out)
		})
	}
}
