package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/cpio"
)

func newBuilder(t *testing.T) *builder {
	return &builder{dir: filepath.Join(t.TempDir(), "cache"), log: t.Logf}
}

func TestEntryIsMadeOnceForAll(t *testing.T) {
	shop := newBuilder(t)
	var made atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			path, err := shop.entry(t.Context(), "x", func(dir string) error {
				made.Add(1)
				return os.WriteFile(filepath.Join(dir, "file"), []byte("whole"), 0o644)
			})
			if err == nil {
				_, err = os.Stat(filepath.Join(path, "file"))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, made.Load())
}

func TestEntryThatFailsIsNotThere(t *testing.T) {
	shop := newBuilder(t)
	reason := errors.New("no network")
	_, err := shop.entry(t.Context(), "x", func(dir string) error {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "half"), nil, 0o644))
		return reason
	})
	require.ErrorIs(t, err, reason)
	path, err := shop.entry(t.Context(), "x", func(string) error { return nil })
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(path, "half"))
}

func TestWaitForWhoMakesAnEntryCanBeEnded(t *testing.T) {
	shop := newBuilder(t)
	_, err := shop.entry(t.Context(), "x", func(string) error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := shop.entry(ctx, "y", nil)
		return err
	})
	require.ErrorIs(t, err, context.Canceled)
}

func TestProbeThatIsStoppedFindsNothing(t *testing.T) {
	if file, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
		t.Skip("there is no KVM to probe:", err)
	} else {
		file.Close()
	}
	shop, dir := newBuilder(t), t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte("#!/bin/sh\nexec sleep 600"), 0o755))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := shop.probe(ctx, kernel{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestCommandsFailWithWhatTheySaid(t *testing.T) {
	_, err := command(t.Context(), "", "sh", "-c", "echo the reason >&2; exit 3")
	require.ErrorContains(t, err, "the reason")
	require.ErrorContains(t, err, "exit status 3")
}

func TestFileThatIsNoKernelIsRefused(t *testing.T) {
	dir := t.TempDir()
	header := func(change func(image []byte)) []byte {
		image := make([]byte, 4096)
		image[0x1f1] = 1 // one sector of set-up, after the first
		copy(image[0x202:], "HdrS")
		image[0x24c] = 100 // bytes of payload
		change(image)
		return image
	}
	for name, image := range map[string][]byte{
		"empty":       nil,
		"other":       make([]byte, 4096),
		"beyond":      header(func(b []byte) { b[0x24f] = 1 }),
		"negative":    header(func(b []byte) { b[0x24c] = 3 }),
		"compression": header(func(b []byte) {}),
	} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, image, 0o644))
		require.ErrorContains(t, decompressKernel(t.Context(), file, file+".out"), file)
		require.NoFileExists(t, file+".out")
	}
}

func TestLibrariesAreThoseThatLddNames(t *testing.T) {
	files, err := parseLdd("\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n" +
		"\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n")
	require.NoError(t, err)
	require.Equal(t, []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}, files)
	_, err = parseLdd("\tlibmissing.so => not found\n")
	require.ErrorContains(t, err, "libmissing.so")
}

func TestLinkToADirectoryIsCopiedAsThat(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "data"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data", "file"), []byte("content"), 0o644))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("data", link))
	var archive bytes.Buffer
	out := cpio.NewWriter(&archive)
	require.NoError(t, addTree(t.Context(), out, link, "/there"))
	require.NoError(t, out.Close())
	require.Contains(t, archive.String(), "there/file\x00")
	require.Contains(t, archive.String(), "content")
}

func TestConsoleKeepsItsEnd(t *testing.T) {
	var c console
	line := make([]byte, 1000)
	for range 10 * consoleSize / len(line) {
		c.Write(line)
	}
	c.Write([]byte("the last line"))
	text := c.String()
	require.GreaterOrEqual(t, len(text), consoleSize)
	require.LessOrEqual(t, len(text), 3*consoleSize)
	require.Equal(t, "the last line", text[len(text)-13:])
}
