//go:build amd64 || arm64

package frame

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A caller that is killed does not wait for its answer any more, and its number may be another
// process's when the model reads what it has passed: nothing is done then, and nothing is written.
// Here all notifications are of such callers, because the listener is none.
func TestACallerThatIsGoneIsNotAnswered(t *testing.T) {
	const node = "/dev/infiniband/uverbs0"
	listener, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(listener)
	closed := false
	host := &Host{
		Nodes: map[string]Node{node: {OpenMessages: func(*EventCount) (MessageFile, error) {
			t.Error("the node was opened")
			return nil, unix.EIO
		}}},
		Sysfs: map[string]string{},
		Links: map[string]string{"infiniband/mlx5_0": "../devices/mlx5_0"},
	}
	p := &Program{host: host, listener: listener, files: map[descriptor]*openFile{}}
	p.sysfs, err = host.makeSysfs()
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(p.sysfs)) }()
	count, err := newEventCount(0)
	require.NoError(t, err)
	owner, err := openProcess(os.Getpid())
	require.NoError(t, err)
	f := &openFile{owner: owner, messages: closing{&closed}, count: count}
	p.files[descriptor{os.Getpid(), firstFD}] = f

	name, link, answer := []byte(node+"\x00"), []byte("/sys/class/infiniband/mlx5_0\x00"), make([]byte, 256)
	for what, n := range map[string]notification{
		"open":     {nr: unix.SYS_OPENAT, args: [6]uint64{0, addressOf(name)}},
		"stat":     {nr: sysStatAt, args: [6]uint64{0, addressOf(name), addressOf(answer)}},
		"readlink": {nr: unix.SYS_READLINKAT, args: [6]uint64{0, addressOf(link), addressOf(answer), uint64(len(answer))}},
		"access":   {nr: unix.SYS_FACCESSAT, args: [6]uint64{0, addressOf(name)}},
		"fstat":    {nr: unix.SYS_FSTAT, args: [6]uint64{firstFD, addressOf(answer)}},
		"write":    {nr: unix.SYS_WRITE, args: [6]uint64{firstFD, addressOf(name), uint64(len(name))}},
		"close":    {nr: unix.SYS_CLOSE, args: [6]uint64{firstFD}},
	} {
		n.pid = uint32(os.Getpid())
		_, _, how := p.call(&n)
		require.Equal(t, byKernel, how, "%s: the kernel is left to refuse it", what)
		require.Equal(t, make([]byte, len(answer)), answer, what)
		require.False(t, closed, what)
	}
	f.close()
}

// closing is a file that no message may reach.
type closing struct{ closed *bool }

func (c closing) Write(*Message) unix.Errno { panic("a message of a caller that is gone") }
func (c closing) Close()                    { *c.closed = true }
