package main

import (
	"bufio"
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/cpio"
	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/wire"
)

// makeInitrd returns the root file system of one guest: the archives from the cache
// and after them one with the first process, the program, its files, and the job.
// The file has no name, so that nothing remains of it in the end.
func makeInitrd(ctx context.Context, archives []string, o *options, job wire.Job) (*os.File, error) {
	file, err := os.CreateTemp("", "guest")
	if err != nil {
		return nil, err
	}
	err = os.Remove(file.Name())
	for _, name := range archives {
		if err == nil {
			err = appendFile(file, name)
		}
	}
	if err == nil {
		out := cpio.NewWriter(file)
		if err = addJob(ctx, out, o, job); err == nil {
			err = out.Close()
		}
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("the guest's root file system: %w", err)
	}
	return file, nil
}

func appendFile(to io.Writer, name string) error {
	from, err := os.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	_, err = io.Copy(to, from)
	return err
}

func addJob(ctx context.Context, out *cpio.Writer, o *options, job wire.Job) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := addProgram(ctx, out, self, "/init"); err != nil {
		return err
	}
	if err := out.Directory(merged(job.Dir), 0o755); err != nil {
		return err
	}
	if !o.inside {
		if err := addProgram(ctx, out, o.program, job.Program); err != nil {
			return err
		}
		if err := addPackage(out, job.Dir); err != nil {
			return err
		}
	}
	// The program opens files in these, it does not make them.
	for _, path := range job.Files {
		if err := out.Directory(merged(filepath.Dir(path)), 0o755); err != nil {
			return err
		}
	}
	for _, path := range job.Directories {
		if err := out.Directory(merged(path), 0o755); err != nil {
			return err
		}
	}
	for _, value := range o.files {
		from, to, err := copied(value)
		if err != nil {
			return err
		}
		if err := addTree(ctx, out, from, to); err != nil {
			return err
		}
	}
	text, err := json.Marshal(job)
	if err != nil {
		return err
	}
	return out.Text(wire.JobPath, 0o600, string(text))
}

// addPackage adds what a test may read in its package's directory: the files in it
// and all of testdata. Other directories are other packages.
func addPackage(out *cpio.Writer, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Type().IsRegular() {
			path := filepath.Join(dir, entry.Name())
			if err := addFile(out, path, path); err != nil {
				return err
			}
		}
	}
	data := filepath.Join(dir, "testdata")
	if !exists(data) {
		return nil
	}
	return addTree(context.Background(), out, data, data)
}

// addTree adds a file, or a directory with all that is below it. from may be a link to either.
func addTree(ctx context.Context, out *cpio.Writer, from, to string) error {
	if info, err := os.Stat(from); err != nil {
		return err
	} else if !info.IsDir() {
		return addProgram(ctx, out, from, merged(to))
	}
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := merged(filepath.Join(to, below))
		switch {
		case entry.IsDir():
			return out.Directory(target, 0o755)
		case entry.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return out.Symlink(target, link)
		}
		return addProgram(ctx, out, path, target)
	})
}

// addProgram adds a file, and if it is a program that needs libraries, those of
// this machine too. They take the place of the guest's own: a later C library runs
// what was made for an earlier one.
func addProgram(ctx context.Context, out *cpio.Writer, from, to string) error {
	if err := addFile(out, from, to); err != nil {
		return err
	}
	object, err := elf.Open(from)
	if err != nil {
		return nil // not a program
	}
	defer object.Close()
	if object.Section(".interp") == nil {
		return nil
	}
	list, err := command(ctx, "", "ldd", from)
	if err != nil {
		return err
	}
	libraries, err := parseLdd(list)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	for _, library := range libraries {
		if err := addFile(out, library, library); err != nil {
			return err
		}
	}
	return nil
}

// parseLdd returns the files in the output of ldd, whose lines are
//
//	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f...)
//	/lib64/ld-linux-x86-64.so.2 (0x00007f...)
//
// and one for the library that the kernel brings itself.
func parseLdd(text string) (files []string, err error) {
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if name, found := strings.CutSuffix(line, "=> not found"); found {
			return nil, fmt.Errorf("this machine has no %s", strings.TrimSpace(name))
		}
		for field := range strings.FieldsSeq(line) {
			if filepath.IsAbs(field) {
				files = append(files, field)
				break
			}
		}
	}
	return files, lines.Err()
}
