package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// What the overlay adds to package net: two variables that the hook sets, and a
// look at them where each dial and each listen of a TCP address comes through. rnet
// dials and listens with package net too, with the context that it was given: there
// the mark in the context says that the hook has been passed.
const (
	netVariables = `
// Set by the hook of the conformance program.
var (
	RamjetDial   func(ctx context.Context, d *Dialer, network, address string) (Conn, error)
	RamjetListen func(ctx context.Context, lc *ListenConfig, network, address string) (Listener, error)
)

type ramjetInside struct{}

func ramjetTakes(ctx context.Context, network string) bool {
	return ctx.Value(ramjetInside{}) == nil && (network == "tcp" || network == "tcp4" || network == "tcp6")
}
`
	dialHead = "func (d *Dialer) DialContext(ctx context.Context, network, address string) (Conn, error) {\n"
	dialHook = `	if RamjetDial != nil && ramjetTakes(ctx, network) {
		ctx, cancel := d.dialCtx(ctx) // Dialer.Cancel, which rnet does not have
		defer cancel()
		return RamjetDial(context.WithValue(ctx, ramjetInside{}, true), d, network, address)
	}
`
	listenHead = "func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (Listener, error) {\n"
	listenHook = `	if RamjetListen != nil && ramjetTakes(ctx, network) {
		return RamjetListen(context.WithValue(ctx, ramjetInside{}, true), lc, network, address)
	}
`
)

// hookPackage is what a suite's test binary links in.
const hookPackage = "github.com/seed-b9b531af/ramjet/rnet/conformance/hook"

// hookTest is the file that is added to each suite.
const hookTest = "ramjet_hook_test.go"

// hookTest is its content.
func (s *suite) hookTest() string {
	return fmt.Sprintf("package %s_test\n\nimport _ %q\n%s", s.name, hookPackage, s.more)
}

// copyModules copies the modules of the suites that are not of the standard library
// into dir, since go test overlays nothing in the module cache, adds the hook to each
// suite, and returns a go.mod that leads to the copies.
func copyModules(dir string, suites []suite) (modfile string, err error) {
	modfile = filepath.Join(dir, "go.mod")
	ramjet, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o600)
		}
		if err != nil {
			return "", err
		}
	}
	edit := []string{"mod", "edit", "-replace=github.com/seed-b9b531af/ramjet=" + ramjet}
	copied := make(map[string]bool)
	for _, s := range suites {
		if s.module == "" {
			continue
		}
		to := filepath.Join(dir, "modules", s.module)
		if !copied[s.module] {
			if err := os.CopyFS(to, os.DirFS(s.moduleDir)); err != nil {
				return "", err
			}
			copied[s.module] = true
			edit = append(edit, "-replace="+s.module+"="+to)
		}
		within, err := filepath.Rel(s.moduleDir, s.dir)
		if err != nil {
			return "", err
		}
		// The cache's folders are read-only, and so are their copies.
		folder := filepath.Join(to, within)
		if err := os.Chmod(folder, 0o700); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(folder, hookTest), []byte(s.hookTest()), 0o600); err != nil {
			return "", err
		}
	}
	_, err = output("go", append(edit, modfile)...)
	return modfile, err
}

// writeOverlay writes what `go test -overlay` needs into dir, and returns the name
// of the overlay file. No file outside dir is changed.
func writeOverlay(dir, goroot string, suites []suite) (string, error) {
	dialFile := filepath.Join(goroot, "src", "net", "dial.go")
	source, err := os.ReadFile(dialFile)
	if err != nil {
		return "", err
	}
	hooked := string(source)
	for _, insert := range [][2]string{{dialHead, dialHook}, {listenHead, listenHook}} {
		if strings.Count(hooked, insert[0]) != 1 {
			return "", fmt.Errorf("%s: there is no %q to hook", dialFile, strings.TrimSpace(insert[0]))
		}
		hooked = strings.Replace(hooked, insert[0], insert[0]+insert[1], 1)
	}
	replace := make(map[string]string)
	add := func(target, name, content string) error {
		file := filepath.Join(dir, name)
		replace[target] = file
		return os.WriteFile(file, []byte(content), 0o600)
	}
	if err := add(dialFile, "net_dial.go", hooked+netVariables); err != nil {
		return "", err
	}
	for i, s := range suites {
		if s.module != "" {
			continue // has the file in its copy
		}
		if err := add(filepath.Join(s.dir, hookTest), fmt.Sprintf("suite%d_test.go", i), s.hookTest()); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, overlay, 0o600)
}
