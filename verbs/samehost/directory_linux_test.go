package samehost

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var meetingConfig = ListenConfig{Type: unix.SOCK_SEQPACKET, Backlog: 8}

// meetAt listens in a directory under a name.
func meetAt(t *testing.T, d *Directory, name string) *Listener {
	t.Helper()
	l, err := d.Listen(meetingConfig)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	_, err = l.SetNames([]string{name})
	require.NoError(t, err)
	return l
}

// own returns the path of our user's directory in d.
func (d *Directory) own() string { return filepath.Join(d.path, strconv.Itoa(os.Geteuid())) }

// newDirectory returns a directory in which each user may make their own.
func newDirectory(t *testing.T) *Directory {
	path := t.TempDir()
	require.NoError(t, os.Chmod(path, 0o777|os.ModeSticky))
	d := DirectoryAt(path)
	if err := d.Err(); errors.Is(err, unix.ENOSYS) {
		t.Skip("needs openat2 (Linux 5.6):", err)
	}
	return d
}

// leaveDead leaves a name as a process does that is killed.
func leaveDead(t *testing.T, d *Directory, name string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(d.own(), name)}))
}

func (d *Directory) dialOwn(names ...string) (*Conn, error) {
	return d.Dial(unix.SOCK_SEQPACKET, nil, os.Geteuid(), names...)
}

func TestTheFirstNameWithAListenerIsDialed(t *testing.T) {
	d := newDirectory(t)
	_, err := d.dialOwn("here")
	require.ErrorIs(t, err, unix.ECONNREFUSED, "not even the user's directory is there")
	l := meetAt(t, d, "here")
	c, err := d.dialOwn("there", "here")
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, os.Getpid(), c.Peer().PID)
	accepted, err := l.Accept()
	require.NoError(t, err)
	accepted.Close()
	require.NoError(t, l.Close())
	left, err := os.ReadDir(d.own())
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestANameIsTakenFromTheDeadOnly(t *testing.T) {
	d := newDirectory(t)
	first := meetAt(t, d, "name")
	second, err := d.Listen(meetingConfig)
	require.NoError(t, err)
	defer second.Close()
	_, err = second.SetNames([]string{"name", "other"})
	require.ErrorIs(t, err, unix.EADDRINUSE)
	c, err := d.dialOwn("other")
	require.NoError(t, err, "what is free it has")
	c.Close()
	require.NoError(t, first.SetDeadline(time.Now()))
	_, err = first.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "the owner was not troubled")
	first.Close()
	leaveDead(t, d, "name")
	_, err = second.SetNames([]string{"name"})
	require.NoError(t, err)
	_, err = d.dialOwn("other")
	require.ErrorIs(t, err, unix.ECONNREFUSED, "it has given back what it does not want")
}

// Of those who want the name of a dead process one gets it, and keeps it.
func TestOneOfManyTakesTheNameOfTheDead(t *testing.T) {
	const starters = 4
	d := newDirectory(t)
	var ls [starters]*Listener
	for i := range ls {
		var err error
		ls[i], err = d.Listen(meetingConfig)
		require.NoError(t, err)
		defer ls[i].Close()
	}
	for range 200 {
		leaveDead(t, d, "name")
		var errs [starters]error
		var all sync.WaitGroup
		for i, l := range ls {
			all.Go(func() { _, errs[i] = l.SetNames([]string{"name"}) })
		}
		all.Wait()
		winner := -1
		for i, err := range errs {
			if err == nil {
				require.Equal(t, -1, winner, "it is one")
				winner = i
				continue
			}
			require.ErrorIs(t, err, unix.EADDRINUSE)
		}
		require.NotEqual(t, -1, winner)
		c, err := d.dialOwn("name")
		require.NoError(t, err)
		accepted, err := ls[winner].Accept()
		require.NoError(t, err)
		accepted.Close()
		c.Close()
		_, err = ls[winner].SetNames(nil)
		require.NoError(t, err)
	}
}

func TestWhatTheDeadHaveLeftIsSweptAway(t *testing.T) {
	old := sweepAge
	t.Cleanup(func() { sweepAge = old })
	d := newDirectory(t)
	l := meetAt(t, d, "alive")
	leaveDead(t, d, "dead")
	require.NoError(t, os.WriteFile(filepath.Join(d.own(), "file"), nil, 0o600))
	meetAt(t, d, "another")
	require.FileExists(t, filepath.Join(d.own(), "dead"), "it may be one that is just being made")
	sweepAge = 0
	meetAt(t, d, "a third")
	require.NoFileExists(t, filepath.Join(d.own(), "dead"))
	require.FileExists(t, filepath.Join(d.own(), "file"), "it is none of ours")
	gone, err := l.SetNames([]string{"alive"})
	require.NoError(t, err)
	require.False(t, gone)
}

func TestAListenerSeesThatItsDirectoryWasEmptied(t *testing.T) {
	d := newDirectory(t)
	l := meetAt(t, d, "name")
	require.NoError(t, os.RemoveAll(d.own()))
	gone, _ := l.SetNames([]string{"name"})
	require.True(t, gone)
	l.Close()
	meetAt(t, d, "name")
}

// Whatever stands under a name, a dial finds nobody, at once.
func TestNamesThatAreNoSocketsOfTheUserAreNotThere(t *testing.T) {
	d := newDirectory(t)
	meetAt(t, d, "real")
	at := func(name string) string { return filepath.Join(d.own(), name) }
	require.NoError(t, os.Symlink("real", at("symlink")))
	require.NoError(t, os.Symlink("/proc/self/root"+at("real"), at("magic link")))
	require.NoError(t, unix.Mkfifo(at("fifo"), 0o600))
	require.NoError(t, os.WriteFile(at("file"), nil, 0o600))
	require.NoError(t, os.Mkdir(at("directory"), 0o700))
	leaveDead(t, d, "dead")
	leaveDead(t, d, "another's")
	stranger := os.Geteuid() == 0
	if stranger {
		require.NoError(t, os.Chown(at("another's"), 1000, 1000))
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: at("stream")}))
	require.NoError(t, unix.Listen(fd, 1))
	for _, name := range []string{
		"missing", "symlink", "magic link", "fifo", "file", "directory", "dead", "another's", "stream",
		"../../" + filepath.Base(d.path) + "/" + filepath.Base(d.own()) + "/real", "real/real",
	} {
		_, err := d.dialOwn(name)
		require.ErrorIs(t, err, unix.ECONNREFUSED, name)
	}
	c, err := d.dialOwn("symlink", "fifo", "real")
	require.NoError(t, err, "and the next name is tried")
	c.Close()
	for _, name := range []string{"symlink", "fifo", "file", "directory"} {
		l, err := d.Listen(meetingConfig)
		require.NoError(t, err)
		_, err = l.SetNames([]string{name})
		require.ErrorIs(t, err, unix.EADDRINUSE, name)
		l.Close()
	}
}

func TestAListenerThatDoesNotAcceptIsBusy(t *testing.T) {
	d := newDirectory(t)
	l, err := d.Listen(ListenConfig{Type: unix.SOCK_SEQPACKET, Backlog: 1})
	require.NoError(t, err)
	defer l.Close()
	_, err = l.SetNames([]string{"full"})
	require.NoError(t, err)
	for err == nil {
		var c *Conn
		if c, err = d.dialOwn("full"); err == nil {
			defer c.Close()
		}
	}
	require.ErrorIs(t, err, unix.EAGAIN)
}

func TestDirectoriesThatAreNotSafeAreNotUsed(t *testing.T) {
	mode := func(mode os.FileMode) string {
		path := t.TempDir()
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	squatted := newDirectory(t).path
	require.NoError(t, os.Mkdir(filepath.Join(squatted, strconv.Itoa(os.Geteuid())), 0o777))
	require.NoError(t, os.Chmod(filepath.Join(squatted, strconv.Itoa(os.Geteuid())), 0o777))
	linked := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(mode(0o755), linked))
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, path := range map[string]string{
		"missing":                filepath.Join(t.TempDir(), "missing"),
		"a relative path":        "run",
		"a symbolic link":        linked,
		"a file":                 file,
		"not sticky":             mode(0o777),
		"a group that may write": mode(0o770),
		"no local file system":   "/proc/sys",
		"our name, and writable": squatted,
	} {
		d := DirectoryAt(path)
		_, err := d.Listen(meetingConfig)
		require.Error(t, err, name)
		t.Log(name+":", err)
		_, err = d.dialOwn("name")
		require.ErrorIs(t, err, unix.ECONNREFUSED, name)
	}
	if os.Geteuid() != 0 {
		skip.Because(t, errors.New("what belongs to others can only be made by root"))
	}
	foreign := mode(0o755)
	require.NoError(t, os.Chown(foreign, 1000, 1000))
	require.ErrorContains(t, DirectoryAt(foreign).Err(), "belongs to user 1000")
	taken := newDirectory(t)
	require.NoError(t, os.Mkdir(taken.own(), 0o711))
	require.NoError(t, os.Chown(taken.own(), 1000, 1000))
	_, err := taken.Listen(meetingConfig)
	require.ErrorIs(t, err, errNotOurs)
}

// A directory on a file system that does not answer holds up nobody for long, and
// nobody twice.
func TestADirectoryThatDoesNotAnswerIsNotWaitedFor(t *testing.T) {
	d := newDirectory(t)
	d.mu.Lock()
	// as if a look had begun
	d.look, d.since = make(chan struct{}), time.Now().Add(-openTime+openTime/20)
	d.mu.Unlock()
	require.ErrorContains(t, d.Err(), "does not answer")
	begun := time.Now()
	for range 1000 {
		require.Error(t, d.Err())
	}
	require.Less(t, time.Since(begun), 50*openTime/2, "not a twentieth of it each time")
	go d.lookAgain()
	require.Eventually(t, func() bool { return d.Err() == nil }, 10*time.Second, time.Millisecond)
}

// Root could change what is another user's, and must not: the name is anybody's to take.
func TestTheDirectoryOfAnotherUserIsLeftAsItIs(t *testing.T) {
	d := newDirectory(t)
	require.NoError(t, os.Mkdir(d.own(), 0o700))
	if err := os.Chown(d.own(), 65001, 65001); err != nil {
		skip.Because(t, err)
	}
	cfg := meetingConfig
	cfg.Others = true
	_, err := d.Listen(cfg)
	require.ErrorIs(t, err, errNotOurs)
	st, err := os.Stat(d.own())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), st.Mode().Perm())
	require.NoError(t, os.Remove(d.own()))
	require.NoError(t, os.Mkdir(d.own(), 0o700)) // ours, which others are to pass
	l, err := d.Listen(cfg)
	require.NoError(t, err)
	defer l.Close()
	st, err = os.Stat(d.own())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o711), st.Mode().Perm())
}

// A directory is opened anew again and again, and whoever is about to use what was open goes on
// with the next one.
func TestADirectoryIsUsedWhileItIsOpenedAnew(t *testing.T) {
	d := newDirectory(t)
	l := meetAt(t, d, "here")
	var over atomic.Bool
	var drops sync.WaitGroup
	drops.Go(func() {
		for !over.Load() {
			d.mu.Lock()
			root := d.root
			d.mu.Unlock()
			if root != nil {
				d.drop(root) // as the timer does
			}
		}
	})
	for range 2000 {
		c, err := d.dialOwn("here")
		if !assert.NoError(t, err) {
			break
		}
		c.Close()
		accepted, err := l.Accept()
		if !assert.NoError(t, err) {
			break
		}
		accepted.Close()
	}
	over.Store(true)
	drops.Wait() // ends with over
}
