package main

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// module is a kernel module's file and what its section .modinfo says.
type module struct {
	name    string // with underscores, as the kernel has it
	file    string // on the host
	depends []string
	aliases []string
}

// moduleName returns a module's name for a file's or a user's spelling of it.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// readModule reads the module in a file that is not compressed.
func readModule(file string) (module, error) {
	object, err := elf.Open(file)
	if err != nil {
		return module{}, fmt.Errorf("kernel module %s: %w", file, err)
	}
	defer object.Close()
	section := object.Section(".modinfo")
	if section == nil {
		return module{}, fmt.Errorf("kernel module %s has no section .modinfo", file)
	}
	info, err := section.Data()
	if err != nil {
		return module{}, fmt.Errorf("kernel module %s: %w", file, err)
	}
	m := module{name: moduleName(file), file: file}
	m.readInfo(string(info))
	return m, nil
}

// readInfo reads the section's strings, each key=value and a zero byte.
func (m *module) readInfo(info string) {
	for entry := range strings.SplitSeq(info, "\x00") {
		key, value, _ := strings.Cut(entry, "=")
		switch {
		case key == "depends" && value != "":
			for name := range strings.SplitSeq(value, ",") {
				m.depends = append(m.depends, moduleName(name))
			}
		case key == "alias":
			m.aliases = append(m.aliases, value)
		}
	}
}

// moduleSet is all modules of a guest, by name.
type moduleSet map[string]module

// readModules reads the modules in the directory.
func readModules(dir string) (moduleSet, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	if err != nil {
		return nil, err
	}
	set := make(moduleSet)
	for _, file := range files {
		m, err := readModule(file)
		if err != nil {
			return nil, err
		}
		set[m.name] = m
	}
	return set, nil
}

// closure returns the named modules and all that they need, each after those it
// depends on.
func (s moduleSet) closure(names ...string) ([]string, error) {
	var order, above []string
	var visit func(name string) error
	visit = func(name string) error {
		if slices.Contains(order, name) {
			return nil
		}
		m, ok := s[name]
		if !ok {
			return fmt.Errorf("there is no kernel module %s, for %s", name, strings.Join(names, ", "))
		}
		if slices.Contains(above, name) {
			return fmt.Errorf("kernel modules depend on each other: %s", strings.Join(append(above, name), ", "))
		}
		above = append(above, name)
		for _, need := range m.depends {
			if err := visit(need); err != nil {
				return err
			}
		}
		above = above[:len(above)-1]
		order = append(order, name)
		return nil
	}
	for _, name := range names {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// names returns the modules' names in alphabetical order.
func (s moduleSet) names() []string {
	names := make([]string, 0, len(s))
	for name := range s {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// depFile returns the modules.dep that modprobe reads (modules.dep(5)): for each
// module what it needs, the nearest first.
func (s moduleSet) depFile() (string, error) {
	var b strings.Builder
	for _, name := range s.names() {
		needs, err := s.closure(name)
		if err != nil {
			return "", err
		}
		slices.Reverse(needs)
		fmt.Fprintf(&b, "%s.ko:", name)
		for _, need := range needs[1:] {
			fmt.Fprintf(&b, " %s.ko", need)
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// aliasFile returns the modules.alias that modprobe reads: what else the kernel
// calls the modules when it asks for them.
func (s moduleSet) aliasFile() string {
	var b strings.Builder
	for _, name := range s.names() {
		for _, alias := range s[name].aliases {
			fmt.Fprintf(&b, "alias %s %s\n", alias, name)
		}
	}
	return b.String()
}

// builtin returns the names of the modules that a kernel has in itself, from its
// modules.builtin.
func builtin(file string) (map[string]bool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for _, line := range strings.Fields(string(text)) {
		names[moduleName(line)] = true
	}
	return names, nil
}
