package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// errNoPackage is the error for a package that Debian's lists do not have.
var errNoPackage = errors.New("apt knows no such package (is its list current? apt-get update)")

// requirePrograms makes sure that the host has the programs that are needed. Without leave to
// install it names the packages that are missing.
func (b *builder) requirePrograms(ctx context.Context) error {
	var missing []string
	for _, need := range buildPackages {
		if _, err := exec.LookPath(need.program); err != nil {
			missing = append(missing, need.pkg)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	missing = append(missing, hostLibraries...)
	if !b.install {
		return fmt.Errorf("to make and run guests, this machine lacks packages (-install installs them):\n\tapt-get install --no-install-recommends %s",
			strings.Join(missing, " "))
	}
	if err := b.update(ctx); err != nil {
		return err
	}
	b.log("installing %s", strings.Join(missing, " "))
	_, err := command(ctx, "", "apt-get", append([]string{"-qq", "-o", "Acquire::Retries=3",
		"install", "--no-install-recommends"}, missing...)...)
	return err
}

// update fetches the lists of packages, once, if that may be done here.
func (b *builder) update(ctx context.Context) error {
	if !b.install || b.updated {
		return nil
	}
	b.log("fetching the lists of packages")
	_, err := command(ctx, "", "apt-get", "-qq", "-o", "Acquire::Retries=3", "update")
	b.updated = err == nil
	return err
}

// dependency returns the package among the dependencies of pkg whose name begins
// with the prefix.
func dependency(ctx context.Context, pkg, prefix string) (string, error) {
	out, err := command(ctx, "", "apt-cache", "depends", "--important", pkg)
	if err != nil {
		return "", fmt.Errorf("package %s: %w: %w", pkg, errNoPackage, err)
	}
	for line := range strings.Lines(out) {
		kind, name, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if kind == "Depends" && strings.HasPrefix(name, prefix) {
			return name, nil
		}
	}
	return "", fmt.Errorf("package %s: no dependency begins with %s", pkg, prefix)
}

// version returns the version of pkg that apt would install.
func version(ctx context.Context, pkg string) (string, error) {
	out, err := command(ctx, "", "apt-cache", "show", "--no-all-versions", pkg)
	if err != nil {
		return "", fmt.Errorf("package %s: %w: %w", pkg, errNoPackage, err)
	}
	for line := range strings.Lines(out) {
		if value, ok := strings.CutPrefix(line, "Version: "); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("package %s: %w", pkg, errNoPackage)
}

// unpack downloads the packages and unpacks them below dir, without installing
// anything. A package may have the form name=version.
func (b *builder) unpack(ctx context.Context, dir string, packages ...string) error {
	b.log("downloading %s", strings.Join(packages, " "))
	debs := filepath.Join(dir, "debs")
	if err := os.MkdirAll(debs, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	// The sandbox user that apt would take may not be allowed into the directory.
	_, err := command(ctx, debs, "apt-get", append([]string{"-qq", "-o", "Acquire::Retries=3",
		"-o", "APT::Sandbox::User=", "download"}, packages...)...)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	if len(files) != len(packages) {
		return fmt.Errorf("apt-get downloaded %d files for the %d packages %v", len(files), len(packages), packages)
	}
	for _, file := range files {
		if _, err := command(ctx, "", "dpkg-deb", "-x", file, dir); err != nil {
			return err
		}
	}
	return nil
}
