// Package docs holds the documents; its tests see to it that they keep up
// with the code.
package docs

import (
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/stretchr/testify/require"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

func TestEveryReasonOfAFallbackIsExplained(t *testing.T) {
	text := read(t, "troubleshooting.md")
	for r := fallback.None; ; r++ {
		if strings.HasPrefix(r.String(), "reason(") {
			require.NotZero(t, r)
			return
		}
		// A row with its meaning and its remedy.
		require.Regexp(t, "(?m)^\\| `"+r.String()+"` \\| [^|]+ \\| [^|]+ \\|$", text)
	}
}

func TestReasonsThatAreGoneAreNotExplained(t *testing.T) {
	_, table, found := strings.Cut(read(t, "troubleshooting.md"), "\n## Reasons\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n## ")
	known := make(map[string]bool)
	for r := fallback.None; !strings.HasPrefix(r.String(), "reason("); r++ {
		known[r.String()] = true
	}
	rows := regexp.MustCompile("(?m)^\\| `([^`]*)` \\|").FindAllStringSubmatch(table, -1)
	require.Len(t, rows, len(known), "a row for each")
	for _, row := range rows {
		require.True(t, known[row[1]], "no reason is called %s", row[1])
	}
}

func TestEveryVariableOfRnetIsExplained(t *testing.T) {
	names := regexp.MustCompile(`"(RNET_[A-Z_]+)"`).FindAllStringSubmatch(read(t, "../fallback/policy.go"), -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		require.Contains(t, read(t, "../README.md"), "\n| `"+name[1]+"` |")
		require.Contains(t, read(t, "../rnet/doc.go"), "\n//\t"+name[1]+" ")
	}
}

func TestEachPackageThatOthersShareHasItsPlace(t *testing.T) {
	folders, err := filepath.Glob("../internal/*")
	require.NoError(t, err)
	for _, of := range []string{"rnet", "rcm", "verbs"} {
		more, err := filepath.Glob("../" + of + "/internal/*")
		require.NoError(t, err)
		require.NotEmpty(t, more)
		folders = append(folders, more...)
	}
	text := read(t, "../CONTRIBUTING.md") + read(t, "architecture.md")
	for _, folder := range folders {
		require.Contains(t, text, strings.TrimPrefix(folder, "../"))
	}
}

func TestEveryModuleOfGoModHasAReason(t *testing.T) {
	text := read(t, "dependencies.md")
	for file, line := range map[string]string{
		"../go.mod": `(?m)^\t(\S+) v\S+`,
		// What the examples' dependencies depend on is their affair.
		"../examples/programs/go.mod": `(?m)^\t(\S+) v\S+$`,
		"../verbs/ibverbs/go.mod":     `(?m)^\t(\S+) v\S+`,
	} {
		modules := regexp.MustCompile(line).FindAllStringSubmatch(read(t, file), -1)
		require.NotEmpty(t, modules)
		for _, m := range modules {
			if m[1] != "github.com/seed-b9b531af/ramjet" {
				require.Contains(t, text, "`"+m[1]+"`", file)
			}
		}
	}
}

// What a program links that imports rnet alone.
func TestTheLibraryLinksFewModules(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "../rnet").Output()
	require.NoError(t, err)
	modules := strings.Fields(string(out))
	slices.Sort(modules)
	require.Equal(t, []string{"github.com/seed-b9b531af/ramjet", "golang.org/x/sys"}, slices.Compact(modules))
	out, err = exec.Command("go", "list", "-deps", "../rnet").Output()
	require.NoError(t, err)
	require.NotContains(t, strings.Fields(string(out)), "net/http")
}

// The README's section More is the table of contents.
func TestTheReadmeLinksEachPage(t *testing.T) {
	_, more, found := strings.Cut(read(t, "../README.md"), "\n## More\n")
	require.True(t, found)
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range pages {
		require.Contains(t, more, "](docs/"+page+")")
	}
}

// Programs in the documents stand in blocks of Go that begin with the package
// clause.
func TestProgramsInTheDocumentsAreGood(t *testing.T) {
	program := regexp.MustCompile("(?ms)^```go\n(package main\n.*?)^```$")
	documents, err := filepath.Glob("*.md")
	require.NoError(t, err)
	found := 0
	for _, name := range documents {
		for _, m := range program.FindAllStringSubmatch(read(t, name), -1) {
			found++
			file := filepath.Join(t.TempDir(), "main.go")
			require.NoError(t, os.WriteFile(file, []byte(m[1]), 0o600))
			out, err := exec.Command("go", "vet", file).CombinedOutput()
			require.NoError(t, err, "%s: %s", name, out)
			formatted, err := format.Source([]byte(m[1]))
			require.NoError(t, err)
			require.Equal(t, string(formatted), m[1], name)
		}
	}
	require.NotZero(t, found)
}

func TestLinksLeadToFilesThatExist(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	within := regexp.MustCompile(`\]\((#[^)]*)\)`)
	file := regexp.MustCompile("`((?:rnet|ring|rcm|verbs|fallback|bench|internal|examples|docs|\\.ci)/[\\w./]+)`")
	documents, err := filepath.Glob("*.md")
	require.NoError(t, err)
	front, err := filepath.Glob("../*.md")
	require.NoError(t, err)
	require.NotEmpty(t, front)
	for _, name := range append(documents, front...) {
		text := read(t, name)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := filepath.Join(filepath.Dir(name), m[1])
			_, err := os.Stat(target)
			require.NoError(t, err, "%s links to %s", name, m[1])
			if m[2] != "" {
				require.Contains(t, anchors(read(t, target)), m[2], "%s links to %s", name, m[1]+m[2])
			}
		}
		for _, m := range within.FindAllStringSubmatch(text, -1) {
			require.Contains(t, anchors(text), m[1], "%s links to itself", name)
		}
		for _, m := range file.FindAllStringSubmatch(text, -1) {
			_, err := os.Stat(filepath.Join("..", m[1]))
			require.NoError(t, err, "%s names %s", name, m[1])
		}
	}
}

// anchors returns the names by which the headings of a document can be linked
// to, as they are made on the web.
func anchors(text string) (list []string) {
	for _, heading := range regexp.MustCompile("(?m)^#+ (.*)$").FindAllStringSubmatch(text, -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, heading[1])
		list = append(list, "#"+name)
	}
	return list
}
