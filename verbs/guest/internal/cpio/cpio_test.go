package cpio_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/cpio"
)

// entry is what a reader finds of a file.
type entry struct {
	name    string
	mode    uint64
	content string
}

// read reads one archive as initramfs-buffer-format.rst describes it.
func read(t *testing.T, archive []byte) (entries []entry) {
	t.Helper()
	inodes := make(map[uint64]bool)
	at := 0
	take := func(n int) string {
		require.LessOrEqual(t, at+n, len(archive))
		at += n
		return string(archive[at-n : at])
	}
	align := func() { at = (at + 3) &^ 3 }
	for {
		require.Equal(t, "070701", take(6))
		var fields [13]uint64
		for i := range fields {
			var err error
			fields[i], err = strconv.ParseUint(take(8), 16, 64)
			require.NoError(t, err)
		}
		name := take(int(fields[11]))
		require.True(t, strings.HasSuffix(name, "\x00"))
		name = strings.TrimSuffix(name, "\x00")
		align()
		content := take(int(fields[6]))
		align()
		if name == "TRAILER!!!" {
			require.Zero(t, len(archive)%512)
			require.Empty(t, strings.Trim(string(archive[at:]), "\x00"))
			return entries
		}
		require.False(t, inodes[fields[0]], "two files with one inode are a hard link")
		inodes[fields[0]] = true
		entries = append(entries, entry{name, fields[1], content})
	}
}

func TestArchiveHoldsWhatWasPutIn(t *testing.T) {
	var archive bytes.Buffer
	w := cpio.NewWriter(&archive)
	require.NoError(t, w.Directory("/tmp", fs.ModeSticky|0o777))
	require.NoError(t, w.Text("/usr/bin/../bin/true", 0o755, "#!x"))
	require.NoError(t, w.File("usr/bin/empty", 0o600, 0, strings.NewReader("")))
	require.NoError(t, w.Symlink("/bin", "usr/bin"))
	require.NoError(t, w.Directory("/usr", 0o700))
	require.NoError(t, w.Close())
	require.Equal(t, []entry{
		{"tmp", 0o041777, ""},
		{"usr", 0o040755, ""},
		{"usr/bin", 0o040755, ""},
		{"usr/bin/true", 0o100755, "#!x"},
		{"usr/bin/empty", 0o100600, ""},
		{"bin", 0o120777, "usr/bin"},
	}, read(t, archive.Bytes()))
}

func TestNamesDoNotLeaveTheRoot(t *testing.T) {
	var archive bytes.Buffer
	w := cpio.NewWriter(&archive)
	require.NoError(t, w.Text("../../etc/x", 0o644, ""))
	require.NoError(t, w.Close())
	entries := read(t, archive.Bytes())
	require.Equal(t, "etc/x", entries[len(entries)-1].name)
}

func TestSizeMustBeTheContents(t *testing.T) {
	for _, size := range []int64{-1, 0, 2, 4, 1 << 32} {
		w := cpio.NewWriter(io.Discard)
		err := w.File("f", 0o644, size, strings.NewReader("abc"))
		require.ErrorContains(t, err, "cpio: f:", "size %d", size)
		require.Equal(t, err, w.Text("g", 0o644, ""), "the first error stays")
		require.Equal(t, err, w.Close())
	}
}

type brokenDisk struct{}

var errBroken = errors.New("broken")

func (brokenDisk) Write([]byte) (int, error) { return 0, errBroken }

func TestErrorOfTheDiskIsTold(t *testing.T) {
	w := cpio.NewWriter(brokenDisk{})
	require.NoError(t, w.Text("f", 0o644, "abc"))
	require.ErrorIs(t, w.Close(), errBroken)
}
