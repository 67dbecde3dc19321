package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each error that a command returns says where it is from: beside it, or in the comment of its function, stands the
// kernel's function, or that it is none of the kernel's.
func TestEachCheckNamesItsSource(t *testing.T) {
	source := regexp.MustCompile(`\w_\w|firmware|the same|the model|guess`)
	checks := 0
	for _, pattern := range []string{"fabric/*.go", "mlx5/*.go", "cm/*.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, name, nil, parser.ParseComments)
			require.NoError(t, err)
			beside := map[int]string{}
			for _, group := range file.Comments {
				for _, c := range group.List {
					beside[set.Position(c.Pos()).Line] = c.Text
				}
			}
			for _, d := range file.Decls {
				function, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				ast.Inspect(function, func(n ast.Node) bool {
					r, ok := n.(*ast.ReturnStmt)
					if !ok || !returnsErrno(r) {
						return true
					}
					checks++
					line := set.Position(r.End()).Line
					text := beside[line] + function.Doc.Text()
					if !source.MatchString(text) {
						t.Errorf("%s:%d: a check without its source", name, line)
					}
					return true
				})
			}
		}
	}
	require.Greater(t, checks, 100)
}

// returnsErrno says whether one of the results is an errno by its name, as unix.EINVAL.
func returnsErrno(r *ast.ReturnStmt) bool {
	for _, result := range r.Results {
		s, ok := result.(*ast.SelectorExpr)
		if !ok {
			continue
		}
		if x, ok := s.X.(*ast.Ident); ok && x.Name == "unix" && strings.HasPrefix(s.Sel.Name, "E") {
			return true
		}
	}
	return false
}
