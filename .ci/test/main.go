// Test runs go test and says at the end which tests were skipped, why, and how to run
// them. Its arguments are those of go test:
//
//	go run ./.ci/test              all packages
//	go run ./.ci/test -race ./rnet
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

func main() {
	arguments := os.Args[1:]
	if len(arguments) == 0 {
		arguments = []string{"./..."}
	}
	if err := run(arguments, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "test:", err)
		os.Exit(1)
	}
}

func run(arguments []string, out io.Writer) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, arguments...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var s summary
	err = s.read(events, out)
	_, _ = io.Copy(io.Discard, events) // ended by go test
	err = errors.Join(err, cmd.Wait())
	s.write(out)
	return err
}

// event is a line of `go test -json`.
type event struct {
	Action, Package, Test, Output string
}

// summary is what came of the tests. Subtests do not count by themselves, unless they were
// skipped.
type summary struct {
	passed, failed int
	skipped        []skipped
}

type skipped struct{ pkg, test, why string }

// logged is what a test says: after the name of its file and a line number.
var logged = regexp.MustCompile(`(?s)^\s+[\w.]+\.go:\d+: (.*)$`)

// read shows the results of packages and what failed, as they come.
func (s *summary) read(events io.Reader, out io.Writer) error {
	printed := make(map[[2]string][]string) // by package and test
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(out, lines.Text()) // of go itself
			continue
		}
		test := [2]string{e.Package, e.Test}
		if e.Action == "output" || e.Action == "build-output" {
			if e.Test == "" && (e.Action == "build-output" || isResult(e.Output)) {
				fmt.Fprint(out, e.Output)
			} else {
				printed[test] = append(printed[test], e.Output)
			}
			continue
		}
		switch e.Action {
		case "pass":
			if e.Test != "" && !strings.Contains(e.Test, "/") {
				s.passed++
			}
		case "fail":
			fmt.Fprint(out, strings.Join(printed[test], ""))
			if e.Test != "" && !strings.Contains(e.Test, "/") {
				s.failed++
			}
		case "skip":
			if e.Test != "" {
				s.skipped = append(s.skipped, skipped{e.Package, e.Test, reason(printed[test])})
			}
		default:
			continue
		}
		delete(printed, test)
	}
	return lines.Err()
}

// isResult tells go test's line about a package from what the package printed.
func isResult(line string) bool {
	return strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "?   \t")
}

// reason is the last thing that a test has said.
func reason(printed []string) string {
	why := "it does not say why"
	for _, line := range printed {
		if m := logged.FindStringSubmatch(line); m != nil {
			why = strings.TrimSpace(m[1])
		}
	}
	return why
}

// needs are what tests are skipped for, by what they say, and how to run them.
var needs = []struct {
	says      *regexp.Regexp
	what, how string
}{
	{regexp.MustCompile(`RAMJET_MODEL_ROOT|FUSE`), "need programs of Debian, or FUSE, for the model of a ConnectX", ".ci/run model"},
	{regexp.MustCompile(`(?i)RDMA device|guest|RAMJET_DEVICES|RAMJET_PEER|device of the kernel|rxe0|siw`), "need RDMA devices of the kernel", `CONTRIBUTING.md, "RDMA devices", or all of them: .ci/run guest`},
	{regexp.MustCompile(`-short`), "are not for -short", "leave out -short"},
	{regexp.MustCompile(`rights|root`), "need the rights of root", "run the tests as root"},
	{regexp.MustCompile(`not installed|executable file not found`), "need programs that are not installed", "install what they name, or .ci/run test"},
	{regexp.MustCompile(`race detector`), "are not for the race detector", "leave out -race"},
	{regexp.MustCompile(`Linux`), "need Linux", "run the tests there"},
	{regexp.MustCompile(`^(the|this) device|^QPs of this|^iWARP|of this device`), "are about what this device does not have", "nothing to run"},
}

// write says what was skipped.
func (s *summary) write(out io.Writer) {
	fmt.Fprintf(out, "%d tests passed, %d failed, %d skipped", s.passed, s.failed, len(s.skipped))
	if len(s.skipped) == 0 {
		fmt.Fprintln(out, ".")
		return
	}
	fmt.Fprintln(out, ":")
	rest := slices.Clone(s.skipped)
	for _, need := range needs {
		before := len(rest)
		rest = slices.DeleteFunc(rest, func(test skipped) bool { return need.says.MatchString(test.why) })
		if n := before - len(rest); n > 0 {
			fmt.Fprintf(out, "%5d %s: %s\n", n, need.what, need.how)
		}
	}
	for _, test := range rest {
		fmt.Fprintf(out, "      %s of %s: %s\n", test.test, test.pkg, test.why)
	}
}
