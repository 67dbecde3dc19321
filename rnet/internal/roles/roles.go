// Package roles lets a test binary be the other process of a test too: one that
// plays a role, which the test that starts it names.
package roles

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// Variable is the environment variable that names the role that a process
// plays, and its arguments. All packages can share it, as a test binary starts
// nothing but itself.
const Variable = "RAMJET_TEST_ROLE"

var roles = map[string]func(args []string) error{}

// Add names what a process can do. It says what it has to say on its standard
// output, a line each, and ends at the latest when its standard input does.
func Add(name string, play func(args []string) error) { roles[name] = play }

// Play, which TestMain calls first, plays the role of this process and ends it.
// It returns if there is none: then the tests are to run.
func Play() {
	if role := os.Getenv(Variable); role != "" {
		os.Exit(play(role))
	}
}

func play(role string) (status int) {
	args := strings.Fields(role)
	go func() {
		io.Copy(io.Discard, os.Stdin) // ended by the parent's death, or its wish
		os.Exit(0)
	}()
	do, ok := roles[args[0]]
	if !ok {
		fmt.Fprintln(os.Stderr, "no such role:", role)
		return 2
	}
	if err := do(args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "role", role, "failed:", err)
		return 1
	}
	return 0
}
