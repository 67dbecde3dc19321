package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// builder makes what guests are booted from and keeps it below the user's cache
// directory. Several programs may use one directory at once.
type builder struct {
	dir     string
	install bool // may install the host packages that are missing
	updated bool // the lists of packages were fetched
	log     func(format string, args ...any)
}

// entry returns the path of a cache entry, and has it made in an empty directory
// if it is not there. An entry appears complete or not at all.
func (b *builder) entry(ctx context.Context, name string, fill func(dir string) error) (string, error) {
	path := filepath.Join(b.dir, name)
	if exists(path) {
		return path, nil
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(b.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	// Until whoever makes an entry has made it or died; the kernel unlocks for the
	// dead.
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if err != unix.EWOULDBLOCK {
			return "", fmt.Errorf("lock %s: %w", b.dir, err)
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("wait for the lock of %s: %w", b.dir, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
	if exists(path) {
		return path, nil
	}
	b.log("making %s", path)
	partial := path + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return "", err
	}
	if err := os.Mkdir(partial, 0o755); err != nil {
		return "", err
	}
	if err := fill(partial); err != nil {
		os.RemoveAll(partial)
		return "", err
	}
	return path, os.Rename(partial, path)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// command runs a program to its end and returns its standard output. The error
// has what the program said.
func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, tail(out.String(), 4000), tail(errs.String(), 4000))
	}
	return out.String(), nil
}

// tail returns the end of a text.
func tail(text string, size int) string {
	if len(text) > size {
		return "..." + text[len(text)-size:]
	}
	return text
}
