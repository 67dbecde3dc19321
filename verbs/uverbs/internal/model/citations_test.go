package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each refusal of a call says where it is from, in a comment at the end of its line. That
// begins with one of these:
//
//	file.c, function    of the kernel. What a file without a directory is of says the package.
//	function            whose file is named with it by another comment of the package
//	the same            as the refusal before it, in the same function
//	the firmware        which refuses what the kernel passes on
//	the model           which has less than the kernel
//	a guess
//
// Several functions are separated by "; ". What follows a colon, or stands in
// parentheses, explains.
func TestEachCheckNamesItsSource(t *testing.T) {
	refusals := 0
	for _, directory := range []string{"frame", "fabric", "mlx5", "cm"} {
		p := parseCitations(t, directory)
		refusals += len(p.refusals)
		for _, r := range p.refusals {
			if why := p.wrong(r); why != "" {
				t.Errorf("%v: %s: %q", r.at, why, r.comment)
			}
		}
	}
	require.Greater(t, refusals, 250)
}

// The test is as strict as it says.
func TestACitationHasAForm(t *testing.T) {
	p := &citing{known: map[string]bool{"mlx5_ib_mmap": true}}
	for comment, want := range map[string]bool{
		"main.c, uar_mmap":                    true,
		"core/umem.c, ib_umem_get: no memory": true,
		"mlx5_ib_mmap":                        true,
		"mlx5_ib_mmap; core/ib_core_uverbs.c, rdma_user_mmap": true,
		"mlx5_ib_mmap (there is none)":                        true,
		"core/uverbs_std_types_dm.c, UVERBS_METHOD_DM_ALLOC":  true,
		"the firmware: it is another's":                       true,
		"the model has none":                                  true,
		"a guess":                                             true,
		"":                                                    false,
		"uar_mmap":                                            false, // of which file?
		"comp_mask, reserved":                                 false,
		"only P_Key 0 is there":                               false,
		"as the firmware does":                                false,
		"main.c":                                              false,
		"main.c, reserved":                                    false,
		"mlx5_ib_mmap; uar_mmap":                              false,
		"the same":                                            false, // as what?
	} {
		require.Equal(t, want, p.wrong(refusal{comment: comment}) == "", comment)
	}
	require.Empty(t, p.wrong(refusal{comment: "the same: also reserved", follows: true}))
}

// A refusal is an errno that a function gives to its caller.
type refusal struct {
	at      token.Position
	comment string // at the end of its line
	follows bool   // another one, in the same function
}

// citing is a package with its refusals, and the functions of which comments say the file.
type citing struct {
	refusals []refusal
	known    map[string]bool
}

var (
	function = `_*[a-z][a-z0-9]*_[a-z0-9_]+|UVERBS_METHOD_[A-Z_]+|MLX5_IB_METHOD_[A-Z_]+`
	file     = `(?:[\w-]+/)*[\w-]+\.[chS]`
	// withFile are a file and functions of it.
	withFile = regexp.MustCompile(`(` + file + `), ((?:` + function + `)(?:(?:, | and |, and )(?:` + function + `))*)`)
	source   = regexp.MustCompile(`^(?:(` + file + `), )?(` + function + `)$`)
	ours     = regexp.MustCompile(`^(?:the same|the firmware|the model|a guess)\b`)
	names    = regexp.MustCompile(function)
)

// wrong says what is wrong with the citation of a refusal.
func (p *citing) wrong(r refusal) string {
	if strings.HasPrefix(r.comment, "the same") && !r.follows {
		return "a check that is the same as none"
	}
	if ours.MatchString(r.comment) {
		return ""
	}
	cited, _, _ := strings.Cut(r.comment, ":")
	cited, _, _ = strings.Cut(cited, " (")
	for one := range strings.SplitSeq(cited, "; ") {
		found := source.FindStringSubmatch(one)
		switch {
		case found == nil:
			return "a check without its source"
		case found[1] == "" && !p.known[found[2]]:
			return "a check whose source has no file"
		}
	}
	return ""
}

func parseCitations(t *testing.T, directory string) *citing {
	t.Helper()
	p := &citing{known: map[string]bool{}}
	paths, err := filepath.Glob(filepath.Join(directory, "*.go"))
	require.NoError(t, err)
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		require.NoError(t, err)
		beside := map[int]string{}
		for _, group := range parsed.Comments {
			for _, c := range group.List {
				beside[set.Position(c.Pos()).Line] = strings.TrimSpace(strings.TrimPrefix(c.Text, "//"))
			}
			// A comment of several lines is one text, and so is the name of a handler.
			text := strings.NewReplacer("\n", " ", "UVERBS_HANDLER(", "", ")", "").Replace(group.Text())
			for _, found := range withFile.FindAllStringSubmatch(text, -1) {
				for _, name := range names.FindAllString(found[2], -1) {
					p.known[name] = true
				}
			}
		}
		for _, declaration := range parsed.Decls {
			lines := refusalsIn(set, declaration)
			for i, at := range lines {
				p.refusals = append(p.refusals, refusal{at: at, comment: beside[at.Line], follows: i > 0})
			}
		}
	}
	require.NotEmpty(t, p.refusals, directory)
	return p
}

// refusalsIn returns where a declaration has errnos that are not compared with one.
func refusalsIn(set *token.FileSet, declaration ast.Decl) []token.Position {
	lines := map[int]token.Position{}
	ast.Inspect(declaration, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			return !isErrno(n.X) && !isErrno(n.Y)
		case *ast.CallExpr:
			called, ok := n.Fun.(*ast.SelectorExpr)
			return !ok || called.Sel.Name != "Is"
		case *ast.CaseClause:
			return !slices.ContainsFunc(n.List, isErrno)
		case *ast.SelectorExpr:
			if isErrno(n) {
				at := set.Position(n.Pos())
				lines[at.Line] = at
			}
		}
		return true
	})
	return slices.SortedFunc(maps.Values(lines), func(a, b token.Position) int { return a.Line - b.Line })
}

// isErrno says whether an expression is an errno by its name, as unix.EINVAL.
func isErrno(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == "unix" && regexp.MustCompile(`^E[A-Z0-9]+$`).MatchString(s.Sel.Name) && !strings.HasPrefix(s.Sel.Name, "EPOLL")
}
