package softcm

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/seed-b9b531af/ramjet/internal/thread"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// squatAs has another user listen in a place of a directory, who accepts nobody. backlog is how
// many may wait for that.
func squatAs(t *testing.T, uid int, dir, place, name string, backlog int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	asUser(t, uid, func() error {
		path := filepath.Join(dir, place)
		if err := unix.Mkdir(path, 0o711); err != nil {
			return err
		}
		path = filepath.Join(path, name)
		return errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Chmod(path, 0o666), unix.Listen(fd, backlog))
	})
}

// asUser runs f on a thread of another effective user.
func asUser(t *testing.T, uid int, f func() error) {
	t.Helper()
	var err error
	thread.Run(func() {
		const same = ^uintptr(0)
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
			err = errno
			return
		}
		err = f()
	})
	if errors.Is(err, unix.EPERM) {
		skip.Because(t, err)
	}
	require.NoError(t, err)
}

// openToAll returns a directory in which each user may make his own.
func openToAll(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
	for parent := filepath.Dir(dir); parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		require.NoError(t, os.Chmod(parent, 0o755))
	}
	return dir
}

const stranger, friend = 65001, 65002

func metBy(t *testing.T, dir string, allow Rules, target netip.AddrPort) (*fabric, []candidate, error) {
	t.Helper()
	f := New(Config{Directory: dir, Allow: allow}).(*fabric)
	d := f.directory()
	if err := d.Err(); errors.Is(err, unix.ENOSYS) {
		t.Skip("needs openat2 (Linux 5.6):", err)
	}
	list, err := f.dialMet(d, target)
	t.Cleanup(func() {
		for _, c := range list {
			c.sock.Close()
		}
	})
	return f, list, err
}

// A stranger who listens, and says nothing, may have the key. That he takes what he is sent,
// or uses a processor, is no reason to wait for him: here he is of this process, which runs.
func TestAStrangerIsNobodyBeforeHeHasShownTheKey(t *testing.T) {
	dir := openToAll(t)
	target := netip.AddrPortFrom(networkHost, 7000)
	squatAs(t, stranger, dir, "65001", target.String(), 8)
	f, list, err := metBy(t, dir, Rules{Key: testKey}, target)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.False(t, list[0].known)
	r := f.routeTo(list, networkHost, target)
	require.False(t, r.Known())
	require.False(t, r.Taken())
	require.Zero(t, r.Ran())
	ctx, cancel := context.WithTimeout(t.Context(), cmtest.Timeout)
	defer cancel()
	require.ErrorIs(t, r.settle(ctx), rcm.ErrPeerDenied)
	require.NoError(t, ctx.Err(), "the stranger had all the time that there was")
	require.False(t, r.Known())
}

// One of them who is known needs not be waited for less.
func TestWhoIsKnownBesideAStrangerIsLookedAt(t *testing.T) {
	dir := openToAll(t)
	target := netip.AddrPortFrom(networkHost, 7000)
	squatAs(t, stranger, dir, "65001", target.String(), 8)
	squatAs(t, friend, dir, "65002", target.String(), 8)
	f, list, err := metBy(t, dir, Rules{Users: []uint32{friend}, Key: testKey}, target)
	require.NoError(t, err)
	require.Len(t, list, 2)
	r := f.routeTo(list, networkHost, target)
	require.True(t, r.Known())
	require.EqualValues(t, friend, r.sock.Load().Peer().UID)
}

// A queue that is full is a reason to wait, if it is that of somebody who may be met.
func TestAStrangersFullQueueIsNobodys(t *testing.T) {
	for _, c := range []struct {
		what  string
		owner int
		place string
		allow Rules
		want  error
	}{
		{"of a user who is allowed", friend, "65002", Rules{Users: []uint32{friend}}, rcm.ErrBusy},
		{"in the place of a user who is allowed", stranger, "65002", Rules{Users: []uint32{friend}}, rcm.ErrNoListener},
		{"of who may have the key", stranger, "65001", Rules{Key: testKey}, rcm.ErrNoListener},
		{"of who may be of the group", stranger, "65001", Rules{Groups: []uint32{friend}}, rcm.ErrNoListener},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := openToAll(t)
			target := netip.AddrPortFrom(networkHost, 7000)
			squatAs(t, c.owner, dir, c.place, target.String(), 0)
			path := filepath.Join(dir, c.place, target.String())
			for {
				fd, err := newTestSocket()
				require.NoError(t, err)
				t.Cleanup(func() { unix.Close(fd) })
				if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err == unix.EAGAIN {
					break
				} else {
					require.NoError(t, err)
				}
			}
			_, _, err := metBy(t, dir, c.allow, target)
			require.ErrorIs(t, err, c.want)
		})
	}
}

func newTestSocket() (int, error) {
	return unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
}
