package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheTestsBesidePyverbsAreThere looks for each test that the page names.
func TestTheTestsBesidePyverbsAreThere(t *testing.T) {
	literals := make(map[string]bool) // of verbstest: the names of its tests, and others
	files, err := filepath.Glob("../verbs/verbstest/*.go")
	require.NoError(t, err)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, err := strconv.Unquote(lit.Value)
				require.NoError(t, err)
				literals[text] = true
			}
			return true
		})
	}
	for _, service := range []string{"RC", "UC", "UD"} {
		literals[service+" QPs have the sizes that they were asked for"] = literals[" QPs have the sizes that they were asked for"]
	}
	functions := make(map[string]bool)
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(text, -1) {
			functions[filepath.Base(filepath.Dir(path))+"."+string(m[1])] = true
		}
		return err
	}))
	count := 0
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(read(t, "pyverbs.md"), -1) {
		switch name := m[1]; {
		case strings.Contains(name, ".Test"):
			require.True(t, functions[name], "there is no %s", name)
			count++
		case regexp.MustCompile("^[tT]est[A-Z]").MatchString(name):
			t.Errorf("%s is neither a test of verbstest, Group/name, nor one with its package", name)
		case strings.Contains(name, "/") && !slices.Contains([]string{"tests/", ".ci/run", "go run ./docs/pyverbscases"}, name):
			for part := range strings.SplitSeq(name, "/") {
				require.True(t, literals[part], "of %s there is no %q in verbstest", name, part)
			}
			count++
		}
	}
	require.Greater(t, count, 60)
}

// TestEachCaseOfPyverbsHasARow looks on the page for each case of its modules, but for those that are
// passed over: it needs tests of ours, or a reason. Where the case passed on rxe, of one kernel or the
// other, all of them have run there.
func TestEachCaseOfPyverbsHasARow(t *testing.T) {
	modules, passedOver, rows := make(map[string]bool), make(map[string]bool), make(map[string][][]string) // rows by the names of cases
	for line := range strings.Lines(read(t, "pyverbs.md")) {
		names := regexp.MustCompile(`test_\w+`)
		if strings.HasPrefix(line, "## ") {
			for _, module := range names.FindAllString(line, -1) {
				modules[module] = true
			}
		}
		row := strings.Split(strings.TrimSpace(line), "|")
		if len(row) == 4 && strings.TrimSpace(row[2]) != "" {
			passedOver[strings.TrimSpace(row[1])] = true
		}
		if len(row) >= 4 {
			for i := range row {
				row[i] = strings.TrimSpace(row[i])
			}
			for _, name := range names.FindAllString(row[1], -1) {
				rows[name] = append(rows[name], row)
			}
		}
	}
	require.Greater(t, len(modules), 10)
	const ours, rxe61, rxe612 = 2, 4, 5 // cells of rows
	require.Contains(t, read(t, "pyverbs.md"), "\n| pyverbs | ours | soft | rxe | rxe 6.12 |")
	count := map[string]int{}
	for line := range strings.Lines(read(t, "pyverbs-rxe.txt")) {
		fields := strings.Split(strings.TrimSpace(line), " | ")
		name := fields[0]
		module, _, isCase := strings.Cut(name, ".")
		if !isCase || !modules[module] {
			require.True(t, !isCase || passedOver[module], "%s has neither a heading nor a reason to pass it over", module)
			continue
		}
		require.Len(t, fields, 3)
		count["cases"]++
		list := rows[name[strings.LastIndex(name, ".")+1:]]
		require.NotEmpty(t, list, name)
		for _, row := range list {
			tests := regexp.MustCompile("`[^`]*(\\.Test|/)[^`]*`").MatchString(row[ours])
			if !tests {
				require.Regexp(t, `\*[^*]+\*`, row[ours], name)
			}
			for i, cell := range []int{rxe61, rxe612} {
				if tests && fields[1+i] == "ok" {
					require.Contains(t, []string{"ran", "needs no device"}, row[cell], "%s has passed on rxe, %q", name, row[ours])
					count["ok"]++
				}
			}
		}
	}
	require.Greater(t, count["cases"], 140)
	require.Greater(t, count["ok"], 160)
}

// TestTheColumnsBesidePyverbsAreOfTheRecord makes them anew.
func TestTheColumnsBesidePyverbsAreOfTheRecord(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"pyverbs.md", "verbstest.txt"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(read(t, name)), 0o600))
	}
	out, err := exec.CommandContext(t.Context(), "go", "run", "./pyverbscases", "-docs", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	got, err := os.ReadFile(filepath.Join(dir, "pyverbs.md"))
	require.NoError(t, err)
	require.Equal(t, string(got), read(t, "pyverbs.md"), "go run ./docs/pyverbscases writes them")
}
