// Package docs holds the documents; its tests see to it that they keep up
// with the code.
package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

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
		require.Contains(t, text, "| `"+r.String()+"` |")
	}
}

func TestEveryModuleOfGoModHasAReason(t *testing.T) {
	text := read(t, "dependencies.md")
	for file, line := range map[string]string{
		"../go.mod": `(?m)^\t(\S+) v\S+`,
		// What the examples' dependencies depend on is their affair.
		"../examples/programs/go.mod": `(?m)^\t(\S+) v\S+$`,
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

func TestLinksLeadToFilesThatExist(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	file := regexp.MustCompile("`((?:rnet|ring|rcm|verbs|fallback|bench|examples|docs|\\.ci)/[\\w./]+)`")
	documents, err := filepath.Glob("*.md")
	require.NoError(t, err)
	for _, name := range append(documents, "../README.md") {
		text := read(t, name)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(name), m[1]))
			require.NoError(t, err, "%s links to %s", name, m[1])
		}
		for _, m := range file.FindAllStringSubmatch(text, -1) {
			_, err := os.Stat(filepath.Join("..", m[1]))
			require.NoError(t, err, "%s names %s", name, m[1])
		}
	}
}
