package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEachTestOfTheSuiteHasARow looks in the record for the tests of package verbstest: those
// that the functions of its groups name, by literals or by tables that they range over.
func TestEachTestOfTheSuiteHasARow(t *testing.T) {
	rows := make(map[string]bool)
	for _, row := range record(t) {
		rows[row[0]] = true
	}
	files, err := filepath.Glob("../verbs/verbstest/*.go")
	require.NoError(t, err)
	groups, bodies := make(map[string]string), make(map[string]*ast.BlockStmt) // by the names of functions
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				bodies[f.Name.Name] = f.Body
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.CompositeLit); ok && len(lit.Elts) == 2 {
				f, isName := lit.Elts[1].(*ast.Ident)
				if group := literals(lit.Elts[:1]); isName && len(group) == 1 && strings.HasPrefix(f.Name, "test") {
					groups[f.Name] = group[0]
				}
			}
			return true
		})
	}
	require.Greater(t, len(groups), 20)
	count := 0
	for function, group := range groups {
		require.Contains(t, bodies, function)
		for _, name := range subtests(bodies[function]) {
			row := group + "/" + strings.ReplaceAll(name, " ", "_")
			require.True(t, rows[row], "verbstest.txt has no row %q: go run ./docs/pyverbscases -record writes them", row)
			count++
		}
	}
	require.Greater(t, count, 110)
}

// TestEachColumnOfTheSuiteIsRecorded looks for a result of each test on each device. A group that is
// skipped as a whole has one of its own, and none of its tests.
func TestEachColumnOfTheSuiteIsRecorded(t *testing.T) {
	const none = "-"
	rows := record(t)
	columns := rows[0]
	of := func(group, column string) string { return group + " on " + column }
	skipped, tried := make(map[string]bool), make(map[string]bool)
	for _, row := range rows[1:] {
		require.Len(t, row, len(columns), "%v", row)
		group, _, isTest := strings.Cut(row[0], "/")
		for i, result := range row[1:] {
			switch at := of(group, columns[1+i]); {
			case result == none:
			case isTest:
				tried[at] = true
			case strings.HasPrefix(result, "skipped: "):
				skipped[at] = true
			}
		}
	}
	for _, row := range rows[1:] {
		group, _, isTest := strings.Cut(row[0], "/")
		for i, result := range row[1:] {
			at := of(group, columns[1+i])
			require.False(t, skipped[at] && tried[at], "%s is skipped as a whole, and a test of it is not", at)
			if result == none {
				require.True(t, isTest && skipped[at] || !isTest && tried[at], "nothing is recorded of %s", of(row[0], columns[1+i]))
			}
		}
	}
}

// record returns the lines of verbstest.txt, by columns, of the suite alone: without tests beside it and the column of
// those that need no device.
func record(t *testing.T) (rows [][]string) {
	for line := range strings.Lines(read(t, "verbstest.txt")) {
		row := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		if strings.Contains(row[0], ".Test") {
			continue
		}
		devices := len(row) - 1
		if len(rows) == 0 {
			require.Equal(t, "none", row[devices])
		}
		rows = append(rows, row[:devices])
	}
	return rows
}

// subtests are the names that a function gives to t.Run, without those of parts of these tests.
func subtests(body ast.Node) []string {
	var names []string
	tables := make(map[string][]string) // by the variables that range over them
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.RangeStmt:
			table, ok := n.X.(*ast.CompositeLit)
			if !ok {
				break
			}
			var keys, firsts []ast.Expr
			for _, e := range table.Elts {
				if pair, ok := e.(*ast.KeyValueExpr); ok {
					keys = append(keys, pair.Key)
					e = pair.Value
				}
				if row, ok := e.(*ast.CompositeLit); ok && len(row.Elts) > 0 {
					e = row.Elts[0]
				}
				if pair, ok := e.(*ast.KeyValueExpr); ok {
					e = pair.Value
				}
				firsts = append(firsts, e)
			}
			if key, ok := n.Key.(*ast.Ident); ok {
				tables[key.Name] = literals(keys)
			}
			if value, ok := n.Value.(*ast.Ident); ok {
				tables[value.Name] = literals(firsts)
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "Run" || len(n.Args) != 2 {
				break
			}
			switch name := n.Args[0].(type) {
			case *ast.BasicLit:
				names = append(names, literals(n.Args[:1])...)
			case *ast.Ident:
				names = append(names, tables[name.Name]...)
			case *ast.SelectorExpr:
				if of, ok := name.X.(*ast.Ident); ok && name.Sel.Name == "name" {
					names = append(names, tables[of.Name]...)
				}
			}
			return false
		}
		return true
	})
	return names
}

// literals are the strings among expressions.
func literals(list []ast.Expr) []string {
	var texts []string
	for _, e := range list {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				texts = append(texts, text)
			}
		}
	}
	return texts
}
