// Command pyverbscases writes, beside each case of pyverbs in docs/pyverbs.md, on which
// devices the tests of ours that the row names have run. What ran is in docs/verbstest.txt.
// Run it in the main folder:
//
//	go run ./docs/pyverbscases
//
// What go test -v printed is recorded as a column, all of it at once:
//
//	go test -v ./verbs/soft -run TestSemanticsWithinOneProcess >/tmp/suite
//	go test -v ./rcm ./rcm/kernelcm >/tmp/rcm
//	go run ./docs/pyverbscases -record soft /tmp/suite /tmp/rcm
//
// The logs have the tests of package verbstest, and those beside it that the page names, with
// their packages. What they say of the devices of other columns counts for nothing. The columns are
//
//	soft        TestSemanticsWithinOneProcess of verbs/soft
//	rxe, siw    TestConformance of verbs/uverbs in the virtual machine with Linux 6.1
//	rxe 6.12    the same with 6.12
//	mlx5        TestConformance/RoCE of verbs/uverbs/internal/mlx5, and those of its tests that the page names
//	libmlx5     TestConformance of verbs/ibverbs on the model, -net -link eth
//	none        tests that need no device
//
// and beside these in each the packages rcm, rcm/kernelcm and examples/rdmainfo, where they run.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// columns are those of the page, in the order in which they are shown.
var columns = []string{"soft", "rxe", "rxe 6.12", "siw", "mlx5", "libmlx5"}

// none is the column of tests that need no device, which the page has not.
const none = "none"

// devices are the names of the devices of columns in logs.
var devices = map[string]string{
	"soft": "soft0", "rxe": "rxe0", "rxe 6.12": "rxe0", "siw": "siw0", "mlx5": "mlx5_0", "libmlx5": "mlx5_0", none: "",
}

// recorded are the columns of the record.
var recorded = append(slices.Clone(columns), none)

func main() {
	record := flag.String("record", "", "the `column` of which the logs in the arguments are")
	docs := flag.String("docs", "docs", "the `folder` of the documents")
	flag.Parse()
	if err := run(*docs, *record, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "cases:", err)
		os.Exit(1)
	}
}

func run(docs, record string, logs []string) error {
	results, err := read(docs)
	if err != nil {
		return err
	}
	page := filepath.Join(docs, "pyverbs.md")
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	if record != "" {
		if !slices.Contains(recorded, record) {
			return fmt.Errorf("%q is none of the columns %v", record, recorded)
		}
		var log []byte
		for _, name := range logs {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			log = append(log, text...)
		}
		ran, err := parse(string(log), devices[record], groups(docs), beside(string(old)))
		if err != nil {
			return err
		}
		results.replace(record, ran)
		if err := os.WriteFile(filepath.Join(docs, "verbstest.txt"), results.encode(), 0o666); err != nil {
			return err
		}
	}
	text, err := fill(string(old), results)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(text), 0o666)
}

// results are what became of each test, by column: "Group/name" with underscores for blanks, or
// "package.TestName" of those beside the suite.
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
	fmt.Fprintf(&b, "test | %s\n", strings.Join(recorded, " | "))
	names := make([]string, 0, len(r))
	for name, of := range r {
		if len(of) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprint(&b, name)
		for _, column := range recorded {
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
	packagePattern = regexp.MustCompile(`^(?:ok|FAIL)\s+(\S+/\S+)`)
	besidePattern  = regexp.MustCompile("`(\\w+\\.Test\\w+)`")
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

// beside are the tests beside the suite that a page names, with their packages.
func beside(page string) []string {
	var list []string
	for _, m := range besidePattern.FindAllStringSubmatch(page, -1) {
		list = append(list, m[1])
	}
	return list
}

// parse reads logs of tests on a device: a test has run if a part of it has.
func parse(log, device string, groups, beside []string) (map[string]string, error) {
	reasons, list := make(map[string]string), make(map[string]string)
	current := ""
	var tests []test // of the package
	for line := range strings.Lines(log) {
		if m := beginPattern.FindStringSubmatch(line); m != nil {
			current = m[1]
		} else if m := messagePattern.FindStringSubmatch(line); m != nil {
			reasons[current] = m[1]
		} else if m := resultPattern.FindStringSubmatch(line); m != nil {
			if m[1] == "FAIL" {
				return nil, fmt.Errorf("the log has a failure: %s", m[2])
			}
			result := ran
			if m[1] == "SKIP" {
				reason, _, _ := strings.Cut(reasons[m[2]], ": go ") // the command with which it is not
				result = "skipped: " + reason
			}
			tests = append(tests, test{m[2], result})
		} else if m := packagePattern.FindStringSubmatch(line); m != nil {
			for _, t := range tests {
				if !t.ofOthers(device) {
					t.record(list, path.Base(m[1]), groups, beside)
				}
			}
			tests = nil
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("the log has no results")
	}
	return prune(list, groups), nil
}

// test is a test of a package, or a part of one, and what became of it.
type test struct{ name, result string }

// ofOthers reports whether a test, by the names of its parts, is of another device.
func (t test) ofOthers(device string) bool {
	for part := range strings.SplitSeq(t.name, "/") {
		for _, other := range devices {
			if other != "" && other != device && (part == other || strings.HasPrefix(part, other+"_")) {
				return true
			}
		}
	}
	return false
}

// record adds a test to the results, if it is one of the groups or one of those beside them.
func (t test) record(list map[string]string, pkg string, groups, beside []string) {
	parts := strings.Split(t.name, "/")
	at, begin := slices.IndexFunc(parts, func(part string) bool { return slices.Contains(groups, part) }), ""
	if slices.Contains(beside, pkg+"."+parts[0]) {
		at, begin = 0, pkg+"."
	}
	if at < 0 {
		return
	}
	// What is skipped has no parts; of what is not, the parts count.
	for end := at + 1; end <= len(parts); end++ {
		name := begin + strings.Join(parts[at:end], "/")
		if t.result == ran || list[name] == "" {
			list[name] = t.result
		}
	}
}

// prune leaves out groups that are there by their tests, and parents that passed while all of
// their parts were skipped.
func prune(list map[string]string, groups []string) map[string]string {
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
	for name := range list {
		if !strings.Contains(name, "/") {
			settle(name)
		}
	}
	for name := range list {
		depth, group := strings.Count(name, "/"), slices.Contains(groups, strings.Split(name, "/")[0])
		if depth > 1 || depth == 1 && !group || depth == 0 && group && len(children[name]) > 0 {
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
	count, free, missing := 0, 0, false // free: of devices
	for _, m := range namePattern.FindAllStringSubmatch(ours, -1) {
		if !strings.Contains(m[1], "/") && !besidePattern.MatchString(m[0]) {
			continue
		}
		name := strings.ReplaceAll(m[1], " ", "_")
		of := r[name]
		if parts := strings.Split(name, "/"); len(parts) > 2 {
			of = r[strings.Join(parts[:2], "/")]
		}
		group, _, _ := strings.Cut(name, "/")
		result := of[column]
		if result == "" {
			result = r[group][column]
		}
		count++
		switch reason, skipped := strings.CutPrefix(result, "skipped: "); {
		case of == nil:
			return "", fmt.Errorf("nothing is recorded of %q", m[1])
		case of[none] == ran:
			free++
		case result == "" && group == name: // not of the suite
			missing = true
		case result == "":
			return "", fmt.Errorf("of %q nothing is recorded on %s", m[1], column)
		case skipped && !slices.Contains(reasons, reason):
			reasons = append(reasons, reason)
		}
	}
	switch {
	case count == 0:
		return "", nil
	case free == count:
		return "needs no device", nil
	case missing:
		return "not run", nil
	case len(reasons) == 0:
		return ran, nil
	}
	return "skipped: " + strings.Join(reasons, "; "), nil
}
