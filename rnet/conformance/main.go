// Command conformance runs the test suites of other projects, as they are, over
// rnet: each net.Dial and net.Listen of a TCP address in them is one of rnet's.
//
//	go run -C rnet/conformance .              all suites
//	go run -C rnet/conformance . -ci        the selection for each change
//	go run -C rnet/conformance . -v net/rpc one of them, with what it prints
//
// It works by go test's -overlay: package net gets a hook (overlay.go), each suite
// a file that links rnet in behind it (hook), and nothing else is changed; no file
// of GOROOT or of the module cache is written to. A test that fails is a difference
// to TCP. The tests that are left out assert *net.TCPConn, which no other
// implementation of net.Conn can be, or watch the calls that package net makes for
// sockets; suites.go names them.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	onlyCI := flag.Bool("ci", false, "run the selection for each change")
	verbose := flag.Bool("v", false, "show what the suites print")
	count := flag.Int("count", 1, "run each suite so many times")
	race := flag.Bool("race", false, "with the race detector")
	overTCP := flag.Bool("tcp", false, "over TCP, through rnet all the same: what fails there too is not about streams")
	flag.Parse()
	if err := run(selection(*onlyCI, flag.Args()), *count, *race, *overTCP, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// selection returns the suites that are asked for: by name, those of CI, or all.
func selection(onlyCI bool, names []string) (chosen []suite) {
	for _, s := range suites {
		asked := len(names) == 0 && (s.ci || !onlyCI)
		for _, name := range names {
			asked = asked || s.pkg == name
		}
		if asked {
			chosen = append(chosen, s)
		}
	}
	return chosen
}

func run(suites []suite, count int, race, overTCP, verbose bool) error {
	if len(suites) == 0 {
		return errors.New("there is no such suite")
	}
	goroot, err := output("go", "env", "GOROOT")
	if err != nil {
		return err
	}
	for i := range suites {
		if err := suites[i].find(); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := writeOverlay(dir, goroot, suites)
	if err != nil {
		return err
	}
	modfile, err := copyModules(dir, suites)
	if err != nil {
		return err
	}
	flags := []string{"test", "-json", "-modfile", modfile, "-vet=off", "-timeout=10m", "-tags", "conformance", "-overlay", overlay, fmt.Sprintf("-count=%d", count)}
	if race {
		flags = append(flags, "-race")
	}
	env := os.Environ()
	if overTCP {
		env = append(env, "RNET_TRANSPORT=tcp")
	}
	fmt.Printf("%-44s %6s %6s %7s %9s %8s %8s\n", "suite", "passed", "failed", "skipped", "left out", "streams", "over TCP")
	var failed []string
	for _, s := range suites {
		r, err := s.run(flags, env, filepath.Join(dir, "dials"), verbose)
		if err != nil {
			return fmt.Errorf("%s: %w", s.pkg, err)
		}
		fmt.Printf("%-44s %6d %6d %7d %9d %8d %8d   %.1f s\n", s.pkg, r.passed, len(r.failed), r.skipped, len(s.exceptions), r.streams, r.tcp, r.took.Seconds())
		for _, name := range r.failed {
			failed = append(failed, s.pkg+" "+name)
		}
		if r.passed == 0 || r.streams == 0 && !overTCP {
			failed = append(failed, s.pkg+": no test passed, or none got a stream")
		}
		if !verbose {
			r.explain(os.Stdout)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d failures:\n\t%s", len(failed), strings.Join(failed, "\n\t"))
	}
	return nil
}

// result is what came of a suite. Subtests count by themselves.
type result struct {
	passed, skipped int
	failed          []string
	streams, tcp    int // dials
	took            time.Duration
	running         map[string]bool   // what has begun and not ended
	printed         map[string][]byte // by each test, and outside of tests by ""
}

// explain prints what the tests that failed have printed.
func (r *result) explain(w io.Writer) {
	for _, name := range r.failed {
		fmt.Fprintf(w, "--- %s:\n%s", name, r.printed[name])
	}
	if len(r.failed) > 0 {
		fmt.Fprintf(w, "---\n%s", r.printed[""])
	}
}

// find fills in what go list knows of the suite.
func (s *suite) find() error {
	found, err := output("go", "list", "-f", "{{.Name}}\n{{.Dir}}\n{{with .Module}}{{.Path}}\n{{.Dir}}{{end}}", s.pkg)
	if err != nil {
		return err
	}
	lines := strings.Split(found, "\n")
	if s.name, s.dir = lines[0], lines[1]; len(lines) == 4 {
		s.module, s.moduleDir = lines[2], lines[3]
	}
	return nil
}

// run runs the suite with its exceptions left out. dials is a file that it may
// write to.
func (s *suite) run(flags, env []string, dials string, verbose bool) (*result, error) {
	if err := os.WriteFile(dials, nil, 0o600); err != nil {
		return nil, err
	}
	args := append(flags[:len(flags):len(flags)], s.args...)
	if len(s.exceptions) > 0 {
		var names []string
		for _, e := range s.exceptions {
			// Each level of subtests is matched by itself.
			levels := strings.Split(regexp.QuoteMeta(e.test), "/")
			names = append(names, "^"+strings.Join(levels, "$/^")+"$")
		}
		args = append(args, "-skip", strings.Join(names, "|"))
	}
	cmd := exec.Command("go", append(args, s.pkg)...)
	cmd.Env = slices.Concat(env, s.env, []string{"RAMJET_CONFORMANCE_DIALS=" + dials})
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &result{running: make(map[string]bool), printed: make(map[string][]byte)}
	readErr := r.read(out, verbose)
	err = cmd.Wait()
	r.took = time.Since(begun)
	if readErr != nil {
		return nil, readErr
	}
	r.failed = append(r.failed, slices.Sorted(maps.Keys(r.running))...)
	if err != nil && len(r.failed) == 0 { // it did not build
		r.failed = []string{err.Error()}
		r.printed[""] = append(r.printed[""], stderr.Bytes()...)
	}
	made, err := os.ReadFile(dials)
	r.streams, r.tcp = bytes.Count(made, []byte{'r'}), bytes.Count(made, []byte{'t'})
	return r, err
}

// event is a line of `go test -json`.
type event struct {
	Action, Test, Output string
}

func (r *result) read(from io.Reader, verbose bool) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("go test printed %q: %w", lines.Text(), err)
		}
		if e.Action == "output" || e.Action == "build-output" {
			r.printed[e.Test] = append(r.printed[e.Test], e.Output...)
			if verbose {
				os.Stdout.WriteString(e.Output)
			}
		}
		if e.Test == "" {
			continue
		}
		switch e.Action {
		case "run":
			r.running[e.Test] = true
		case "pass":
			r.passed++
			delete(r.running, e.Test)
		case "skip":
			r.skipped++
			delete(r.running, e.Test)
		case "fail":
			r.failed = append(r.failed, e.Test)
			delete(r.running, e.Test)
		}
	}
	return lines.Err()
}

func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
