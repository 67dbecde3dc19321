// Package cpio writes archives in the newc format, the one which the Linux
// kernel unpacks as its initial root file system (its documentation calls it
// initramfs buffer format). Archives may follow each other in one file: the
// kernel unpacks one after the other, and a later file replaces an earlier one of
// the same name.
package cpio

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// File type bits of the mode field, as in stat(2).
const (
	typeDirectory = 0o040000
	typeRegular   = 0o100000
	typeSymlink   = 0o120000
)

// maxSize is the largest file that the format's eight hexadecimal digits can say.
const maxSize = 1<<32 - 1

// Writer writes one archive. Directories come into being by themselves when
// something is put into them; all entries belong to root. The first error sticks
// and is returned by every later call. A Writer is for one goroutine.
type Writer struct {
	out   *bufio.Writer
	err   error
	inode uint32
	size  int64 // bytes written, for the padding
	made  map[string]bool
}

// NewWriter returns a writer of an archive to out. The archive ends with Close.
func NewWriter(out io.Writer) *Writer {
	return &Writer{out: bufio.NewWriterSize(out, 1<<20), made: map[string]bool{".": true}}
}

// Directory adds the directory name, if it is not there yet. Of the mode the
// permission bits and the sticky bit count.
func (w *Writer) Directory(name string, mode fs.FileMode) error {
	name = clean(name)
	if w.made[name] || w.err != nil {
		return w.err
	}
	w.parents(name)
	w.made[name] = true
	bits := uint32(mode.Perm()) | typeDirectory
	if mode&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	w.header(name, bits, 0)
	return w.err
}

// File adds a regular file with the size bytes that content holds; more or
// fewer are an error.
func (w *Writer) File(name string, mode fs.FileMode, size int64, content io.Reader) error {
	name = clean(name)
	if size < 0 || size > maxSize {
		w.fail(fmt.Errorf("cpio: %s: size %d does not fit the format", name, size))
	}
	w.parents(name)
	w.header(name, uint32(mode.Perm())|typeRegular, size)
	if w.err != nil {
		return w.err
	}
	n, err := io.Copy(w.out, io.LimitReader(content, size+1))
	w.size += n
	switch {
	case err != nil:
		w.fail(fmt.Errorf("cpio: %s: %w", name, err))
	case n != size:
		w.fail(fmt.Errorf("cpio: %s: its content is not the %d bytes that were announced", name, size))
	}
	w.pad()
	return w.err
}

// Text adds a regular file with the given content.
func (w *Writer) Text(name string, mode fs.FileMode, content string) error {
	return w.File(name, mode, int64(len(content)), strings.NewReader(content))
}

// Symlink adds a symbolic link that points to target.
func (w *Writer) Symlink(name, target string) error {
	name = clean(name)
	w.parents(name)
	w.header(name, 0o777|typeSymlink, int64(len(target)))
	w.bytes(target)
	w.pad()
	return w.err
}

// Close ends the archive and flushes it. It does not close what is below.
func (w *Writer) Close() error {
	w.inode = 0
	w.header("TRAILER!!!", 0, 0)
	// Whatever follows must begin at a multiple of four bytes; a block of 512 is
	// what cpio programs write.
	for w.err == nil && w.size%512 != 0 {
		w.bytes("\x00")
	}
	if w.err == nil {
		w.err = w.out.Flush()
	}
	return w.err
}

// clean returns a name as it stands in archives: relative to the root.
func clean(name string) string {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if name == "" {
		return "."
	}
	return name
}

func (w *Writer) parents(name string) {
	if parent := path.Dir(name); !w.made[parent] {
		w.fail(w.Directory(parent, 0o755))
	}
}

// header writes the fields in the order of the format: magic, ino, mode, uid, gid,
// nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check.
func (w *Writer) header(name string, mode uint32, size int64) {
	w.inode++
	w.bytes(fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		w.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name))
	w.pad()
}

func (w *Writer) pad() {
	for w.err == nil && w.size%4 != 0 {
		w.bytes("\x00")
	}
}

func (w *Writer) bytes(s string) {
	if w.err != nil {
		return
	}
	n, err := w.out.WriteString(s)
	w.size += int64(n)
	w.fail(err)
}

func (w *Writer) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}
