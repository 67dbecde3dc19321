package main

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/cpio"
)

// libraryDirectory is where Debian has its libraries, below / and /usr.
const libraryDirectory = "/lib/x86_64-linux-gnu"

// programs returns the archive with the guest's own programs: busybox, iproute2 and
// the field's C programs with their libraries.
func (b *builder) programs(ctx context.Context) (string, error) {
	name := "programs-" + recipeKey(packages, programs, plugins, texts)
	dir, err := b.entry(ctx, name, func(dir string) error { return b.makePrograms(ctx, dir) })
	if err != nil {
		return "", fmt.Errorf("the guest's programs: %w", err)
	}
	return filepath.Join(dir, "programs.cpio"), nil
}

// texts are small files of the guest.
var texts = map[string]string{
	"/etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nguest:x:1000:1000:guest:/home/guest:/bin/sh\n",
	"/etc/group":         "root:x:0:\nguest:x:1000:\n",
	"/etc/hosts":         "127.0.0.1 localhost\n::1 localhost\n",
	"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",

	providerConfiguration + "rxe.driver": "driver rxe\n",
	providerConfiguration + "siw.driver": "driver siw\n",
}

func (b *builder) makePrograms(ctx context.Context, dir string) error {
	root := filepath.Join(dir, "root")
	if err := b.update(ctx); err != nil {
		return err
	}
	if err := b.unpack(ctx, root, packages...); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(dir, "programs.cpio"))
	if err != nil {
		return err
	}
	defer file.Close()
	s := &system{root: root, out: cpio.NewWriter(file), has: make(map[string]bool)}
	if err := s.assemble(ctx); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

// system is the guest's root file system while it is put together from unpacked
// packages. Everything lies below /usr, and the old directories are links.
type system struct {
	root string
	out  *cpio.Writer
	has  map[string]bool
}

func (s *system) assemble(ctx context.Context) error {
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib64"} {
		s.out.Directory("/usr"+name, 0o755)
		s.out.Symlink(name, "usr"+name)
	}
	for _, name := range []string{"/root", "/proc", "/sys", "/dev", "/run", "/tmp"} {
		s.out.Directory(name, 0o755)
	}
	s.out.Directory("/home/guest", 0o777)
	for name, text := range texts {
		s.out.Text(name, 0o644, text)
	}
	names := slices.Clone(programs)
	found, err := filepath.Glob(s.root + "/usr/bin/*")
	if err != nil {
		return err
	}
	for _, file := range found {
		names = append(names, strings.TrimPrefix(file, s.root))
	}
	for _, name := range names {
		if err := s.addProgram(name); err != nil {
			return err
		}
	}
	for _, pattern := range plugins {
		found, err := filepath.Glob(s.root + "/usr" + libraryDirectory + "/" + pattern)
		if err != nil {
			return err
		}
		old, err := filepath.Glob(s.root + libraryDirectory + "/" + pattern)
		if err != nil {
			return err
		}
		if found = append(found, old...); len(found) != 1 {
			return fmt.Errorf("the packages have %d files %s, not one", len(found), pattern)
		}
		if err := s.addProgram(strings.TrimPrefix(found[0], s.root)); err != nil {
			return err
		}
	}
	if err := s.addBusybox(ctx); err != nil {
		return err
	}
	return s.out.Close()
}

// addProgram adds a program or a library with all libraries that it needs.
// Scripts are left out: what they are written in is not there.
func (s *system) addProgram(name string) error {
	target := merged(name)
	if s.has[target] {
		return nil
	}
	file, err := s.resolve(name)
	if err != nil {
		return err
	}
	object, err := elf.Open(file)
	var format *elf.FormatError
	if errors.As(err, &format) {
		return nil
	}
	if err != nil {
		return err
	}
	defer object.Close()
	s.has[target] = true
	if err := addFile(s.out, file, target); err != nil {
		return err
	}
	if interpreter := object.Section(".interp"); interpreter != nil {
		path, err := interpreter.Data()
		if err != nil {
			return err
		}
		if err := s.addProgram(strings.TrimRight(string(path), "\x00")); err != nil {
			return err
		}
	}
	libraries, err := object.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, library := range libraries {
		if err := s.addLibrary(library, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *system) addLibrary(library, user string) error {
	for _, dir := range []string{libraryDirectory, "/usr" + libraryDirectory} {
		name := path.Join(dir, library)
		if _, err := s.resolve(name); err == nil {
			return s.addProgram(name)
		}
	}
	return fmt.Errorf("%s needs %s, which none of the packages has", user, library)
}

// resolve returns the file on the host behind a name in the packages. Links are
// followed as the guest would follow them.
func (s *system) resolve(name string) (string, error) {
	for range 10 {
		file := filepath.Join(s.root, name)
		target, err := os.Readlink(file)
		if err != nil {
			_, err = os.Stat(file)
			return file, err
		}
		if !path.IsAbs(target) {
			target = path.Join(path.Dir(name), target)
		}
		name = target
	}
	return "", fmt.Errorf("%s: too many links", name)
}

// addBusybox adds busybox under the names of all its programs that nothing better
// has taken. The shell is another one: busybox's would run busybox's programs even
// where there are better ones.
func (s *system) addBusybox(ctx context.Context) error {
	const busybox = "/usr/bin/busybox"
	file, err := s.resolve("/bin/busybox")
	if err != nil {
		return err
	}
	list, err := command(ctx, "", file, "--list-full")
	if err != nil {
		return err
	}
	s.has[busybox], s.has["/usr/bin/sh"] = true, true
	if err := s.out.Symlink("/usr/bin/sh", "dash"); err != nil {
		return err
	}
	if err := addFile(s.out, file, busybox); err != nil {
		return err
	}
	for name := range strings.FieldsSeq(list) {
		base := path.Base(name)
		if s.has["/usr/bin/"+base] || s.has["/usr/sbin/"+base] {
			continue
		}
		target := merged("/" + name)
		s.has[target] = true
		if err := s.out.Symlink(target, busybox); err != nil {
			return err
		}
	}
	return nil
}

// merged returns the place below /usr for a name in one of the old directories. In an archive a
// directory of their name would take the place of the link.
func merged(name string) string {
	for _, old := range []string{"/bin/", "/sbin/", "/lib/", "/lib64/"} {
		if strings.HasPrefix(name+"/", old) {
			return "/usr" + name
		}
	}
	return name
}

// addFile copies a file of the host into an archive, with its permissions.
func addFile(out *cpio.Writer, from, to string) error {
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return out.File(merged(to), info.Mode(), info.Size(), file)
}
