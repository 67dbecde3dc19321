// Compatibility tries libraries over rnet, each with a server and a client of its own, and
// prints what came of it as a table:
//
//	go run -C examples/compatibility .             all of them
//	go run -C examples/compatibility . gRPC smux   some
//	go run -C examples/compatibility . -write      into docs/compatibility.md
//
// Each one moves the same message there and back, and the program looks at what it got and
// over what the connections went: with both ends by rnet, then only the server, then only
// the client. Client and server are in one process.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	write := flag.Bool("write", false, "write the table into the document")
	document := flag.String("document", "../../docs/compatibility.md", "with -write: the `file`")
	flag.Parse()
	if err := run(flag.Args(), *write, *document); err != nil {
		fmt.Fprintln(os.Stderr, "compatibility:", err)
		os.Exit(1)
	}
}

func run(names []string, write bool, document string) error {
	for _, name := range names {
		if !slices.ContainsFunc(trials, func(t trial) bool { return t.name == name }) {
			return fmt.Errorf("there is no %s", name)
		}
	}
	var chosen []trial
	for _, t := range trials {
		if len(names) == 0 || slices.Contains(names, t.name) {
			chosen = append(chosen, t)
		}
	}
	rows, err := tryAll(chosen, os.Stderr)
	if err != nil {
		return err
	}
	if !write {
		fmt.Print(table(rows))
		return nil
	}
	if len(names) > 0 {
		return fmt.Errorf("the document has all of them, not only %s", strings.Join(names, ", "))
	}
	old, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	text, err := insert(string(old), table(rows))
	if err != nil {
		return err
	}
	return os.WriteFile(document, []byte(text), 0o666)
}

// tryAll tries them one after the other, each in all three ways. What fails is an error.
func tryAll(chosen []trial, progress *os.File) (rows []row, err error) {
	for _, t := range chosen {
		begun := time.Now()
		r := row{trial: t}
		for _, w := range ways {
			went, err := t.try(w)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", t.name, w.name, err)
			}
			r.went = append(r.went, went)
		}
		fmt.Fprintf(progress, "%s: %s, %.1f s\n", t.name, strings.Join(r.went, ", "), time.Since(begun).Seconds())
		rows = append(rows, r)
	}
	return rows, nil
}

// trialTime is more than any of them takes.
const trialTime = time.Minute

// try does the trial in one way, and says over what its bytes went.
func (t trial) try(w way) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), trialTime)
	defer cancel()
	n := newNetwork(w)
	defer n.close()
	before := softBytes()
	if err := t.run(ctx, n); err != nil {
		return "", err
	}
	return n.went(softBytes() - before)
}

// row is what came of a trial, in the order of ways.
type row struct {
	trial
	went []string
}

func table(rows []row) string {
	var b strings.Builder
	b.WriteString("| | version | lines | the client's line | both ends | one end | |\n|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		changes, lines := r.changes()
		for i := range changes {
			changes[i] = "`" + changes[i] + "`"
		}
		oneEnd := r.went[1]
		if r.went[2] != oneEnd {
			oneEnd += ", " + r.went[2]
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %s |\n",
			r.title(), r.version(), lines, strings.Join(changes, "<br>"), r.went[0], oneEnd, r.remark)
	}
	return b.String()
}

var place = regexp.MustCompile(`(?s)(<!-- table[^>]*-->\n).*?(<!-- end of table -->)`)

// insert puts the table between its comments.
func insert(document, table string) (string, error) {
	if len(place.FindAllString(document, -1)) != 1 {
		return "", fmt.Errorf("the document does not have one place for the table")
	}
	return place.ReplaceAllStringFunc(document, func(old string) string {
		m := place.FindStringSubmatch(old)
		return m[1] + table + m[2]
	}), nil
}
