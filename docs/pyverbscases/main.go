// Command pyverbscases writes, beside each case of pyverbs in docs/pyverbs.md, on which
// devices the tests of ours that the row names have run. What ran is in docs/verbstest.txt.
// Run it in the main folder:
//
//	go run ./docs/pyverbscases
//
// What go test -v printed of package verbstest on a device, as its column, is recorded by
//
//	go test -v ./verbs/soft -run TestSemanticsWithinOneProcess >/tmp/log
//	go run ./docs/pyverbscases -record soft /tmp/log
//
// and so are TestConformance of package verbs/uverbs in the virtual machine, with -device rxe0 as
// column "rxe" and with siw0 as "siw" where it has Linux 6.1, with rxe0 as "rxe 6.12" where it has 6.12, TestConformance/RoCE of verbs/uverbs/internal/mlx5 as
// "mlx5", and TestConformance of verbs/ibverbs on the model as "libmlx5".
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// columns are the devices, in the order in which they are shown.
var columns = []string{"soft", "rxe", "rxe 6.12", "siw", "mlx5", "libmlx5"}

func main() {
	record := flag.String("record", "", "the `column` of which the log in the argument is")
	device := flag.String("device", "", "take only lines of this `name`")
	docs := flag.String("docs", "docs", "the `folder` of the documents")
	flag.Parse()
	if err := run(*docs, *record, *device, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "cases:", err)
		os.Exit(1)
	}
}

func run(docs, record, device, log string) error {
	results, err := read(docs)
	if err != nil {
		return err
	}
	if record != "" {
		if !slices.Contains(columns, record) {
			return fmt.Errorf("%q is none of the columns %v", record, columns)
		}
		text, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		ran, err := parse(string(text), device, groups(docs))
		if err != nil {
			return err
		}
		results.replace(record, ran)
		if err := os.WriteFile(filepath.Join(docs, "verbstest.txt"), results.encode(), 0o666); err != nil {
			return err
		}
	}
	page := filepath.Join(docs, "pyverbs.md")
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	text, err := fill(string(old), results)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(text), 0o666)
}

// results are what became of each test, "Group/name" with underscores for blanks, by column.
type results map[string]map[string]string

const ran = "ran"

// read reads the record, which may not be there yet.
func read(docs string) (results, error) {
	text, err := os.ReadFile(filepath.Join(docs, "verbstest.txt"))
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	list := make(results)
	var of []string // the columns of the record, which may be older than a column
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		if fields[0] == "test" {
			of = fields[1:]
			continue
		}
		if len(fields) != 1+len(of) {
			return nil, fmt.Errorf("verbstest.txt: %q has not %d fields", line, 1+len(of))
		}
		list[fields[0]] = make(map[string]string)
		for i, column := range of {
			if fields[1+i] != "-" {
				list[fields[0]][column] = fields[1+i]
			}
		}
	}
	return list, nil
}

func (r results) encode() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "test | %s\n", strings.Join(columns, " | "))
	names := make([]string, 0, len(r))
	for name, of := range r {
		if len(of) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprint(&b, name)
		for _, column := range columns {
			result := r[name][column]
			if result == "" {
				result = "-"
			}
			fmt.Fprint(&b, " | ", result)
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// replace sets a whole column.
func (r results) replace(column string, list map[string]string) {
	for _, of := range r {
		delete(of, column)
	}
	for name, result := range list {
		if r[name] == nil {
			r[name] = make(map[string]string)
		}
		r[name][column] = result
	}
}

var (
	groupPattern   = regexp.MustCompile(`\{"(\w+)", test\w+\},`)
	beginPattern   = regexp.MustCompile(`^\s*=== (?:RUN|NAME|CONT)\s+(\S+)`)
	messagePattern = regexp.MustCompile(`^\s*\w+\.go:\d+: (.*)`)
	resultPattern  = regexp.MustCompile(`^\s*--- (PASS|SKIP|FAIL): (\S+)`)
)

// groups are those of package verbstest.
func groups(docs string) []string {
	// without it nothing is found
	text, _ := os.ReadFile(filepath.Join(docs, "../verbs/verbstest/pair.go"))
	var list []string
	for _, m := range groupPattern.FindAllStringSubmatch(string(text), -1) {
		list = append(list, m[1])
	}
	return list
}

// parse reads a log: a test has run if a part of it has.
func parse(log, device string, groups []string) (map[string]string, error) {
	reasons, list := make(map[string]string), make(map[string]string)
	current := ""
	for line := range strings.Lines(log) {
		if m := beginPattern.FindStringSubmatch(line); m != nil {
			current = m[1]
		} else if m := messagePattern.FindStringSubmatch(line); m != nil {
			reasons[current] = m[1]
		}
		m := resultPattern.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if m[1] == "FAIL" {
			return nil, fmt.Errorf("the log has a failure: %s", m[2])
		}
		parts := strings.Split(m[2], "/")
		at := slices.IndexFunc(parts, func(part string) bool { return slices.Contains(groups, part) })
		if at < 0 || device != "" && !slices.Contains(parts[:at], device) {
			continue
		}
		// A group that is skipped has no tests; of one that is not, the tests count.
		for end := at + 1; end <= len(parts); end++ {
			name := strings.Join(parts[at:end], "/")
			if m[1] == "PASS" {
				list[name] = ran
			} else if list[name] == "" {
				list[name] = "skipped: " + reasons[m[2]]
			}
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("the log has no results")
	}
	return prune(list, log, groups), nil
}

// prune leaves out groups that are there by their tests, and parents that passed while all of
// their parts were skipped.
func prune(list map[string]string, log string, groups []string) map[string]string {
	children := make(map[string][]string)
	for name := range list {
		if i := strings.LastIndex(name, "/"); i > 0 {
			children[name[:i]] = append(children[name[:i]], name)
		}
	}
	var settle func(name string) string
	settle = func(name string) string {
		if len(children[name]) == 0 {
			return list[name]
		}
		slices.Sort(children[name])
		result := ""
		for _, child := range children[name] {
			if of := settle(child); result == "" || of == ran {
				result = of
			}
		}
		list[name] = result
		return result
	}
	for _, group := range groups {
		if _, ok := list[group]; ok {
			settle(group)
		}
	}
	for name := range list {
		if depth := strings.Count(name, "/"); depth > 1 || depth == 0 && len(children[name]) > 0 {
			delete(list, name)
		}
	}
	return list
}

var namePattern = regexp.MustCompile("`([^`]+)`")

// fill writes the columns of the rows of cases.
func fill(page string, r results) (string, error) {
	var b strings.Builder
	cases := false // in a table of cases
	for line := range strings.Lines(page) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		switch {
		case strings.HasPrefix(line, "| pyverbs | ours |"):
			cases = true
			line = "| pyverbs | ours | " + strings.Join(columns, " | ") + " |\n"
		case cases && strings.HasPrefix(line, "|---"):
			line = strings.Repeat("|---", 2+len(columns)) + "|\n"
		case cases && strings.HasPrefix(line, "| "):
			ours := strings.TrimSuffix(fields[1], " |")
			line = fields[0] + " | " + ours
			for _, column := range columns {
				cell, err := r.cell(ours, column)
				if err != nil {
					return "", err
				}
				line += " | " + cell
			}
			line += " |\n"
		default:
			cases = false
		}
		b.WriteString(line)
	}
	return b.String(), nil
}

// cell says whether all tests that are named have run, or why some have not.
func (r results) cell(ours, column string) (string, error) {
	var reasons []string
	count := 0
	for _, m := range namePattern.FindAllStringSubmatch(ours, -1) {
		if !strings.Contains(m[1], "/") || strings.HasPrefix(m[1], "Test") {
			continue
		}
		name := strings.ReplaceAll(m[1], " ", "_")
		of := r[name]
		if parts := strings.Split(name, "/"); len(parts) > 2 {
			of = r[strings.Join(parts[:2], "/")]
		}
		if of == nil {
			return "", fmt.Errorf("nothing is recorded of %q", m[1])
		}
		count++
		group, _, _ := strings.Cut(name, "/")
		result := of[column]
		if result == "" && r[group] != nil {
			result = r[group][column]
		}
		if reason, skipped := strings.CutPrefix(result, "skipped: "); skipped && !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		} else if result == "" {
			return "", fmt.Errorf("of %q nothing is recorded on %s", m[1], column)
		}
	}
	switch {
	case count == 0:
		return "", nil
	case len(reasons) == 0:
		return ran, nil
	}
	return "skipped: " + strings.Join(reasons, "; "), nil
}
