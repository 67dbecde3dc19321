//go:build amd64 || arm64

package cm_test

import (
	"encoding/binary"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/kernelcm"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/modeltest"
)

func TestMain(m *testing.M) {
	modeltest.Main()
	os.Exit(m.Run())
}

var (
	le = binary.LittleEndian
	be = binary.BigEndian
)

// served is a port of the model's network, in which nobody else is.
const served = 7777

var first = netip.MustParseAddr("10.77.0.1")

// Package rcm listens and resolves addresses on the model; the program that dials is one of raw
// bytes, whose calls wait in the kernel.
func TestAListenerOfRCMRejectsARequest(t *testing.T) {
	for name, device := range map[string]mlx5.Config{"InfiniBand": {}, "RoCE": {Link: fabric.Ethernet}} {
		t.Run(name, func(t *testing.T) {
			if !modeltest.On(t, modeltest.Config{Device: device, Hosts: 2, Network: true}) {
				return
			}
			if modeltest.Host() == 0 {
				l, err := kernelcm.New(kernelcm.Config{}).Listen(netip.AddrPortFrom(first, served), rcm.ListenConfig{})
				require.NoError(t, err)
				defer l.Close()
				modeltest.Exchange(t, nil) // it listens
				r, err := l.Accept(t.Context())
				require.NoError(t, err)
				require.Equal(t, "mlx5_0", r.Device())
				require.Equal(t, first.Next().String(), r.RemoteAddr().Addr().String())
				require.Equal(t, "may I?", string(r.PrivateData()[:6]))
				require.NoError(t, r.Reject([]byte("no")))
				modeltest.Exchange(t, nil)
				return
			}
			modeltest.Exchange(t, nil)
			to := netip.AddrPortFrom(first, served)
			route, err := kernelcm.New(kernelcm.Config{}).Resolve(t.Context(), to)
			require.NoError(t, err)
			require.Equal(t, "mlx5_0", route.Device())
			require.Equal(t, first.Next().String(), route.LocalAddr().String())
			require.NoError(t, route.Close())

			d := dialer{t, open(t), 0}
			d.resolve(to)
			require.Equal(t, eventRejected{28, "no"}, d.connect("may I?"))
			to = netip.AddrPortFrom(to.Addr(), to.Port()+1)
			d = dialer{t, open(t), 0}
			d.resolve(to)
			require.Equal(t, eventRejected{8, ""}, d.connect("is somebody there?"), "nobody listens at that port")
			modeltest.Exchange(t, nil)
		})
	}
}

const (
	tcp = 0x106 // RDMA_PS_TCP
	udp = 0x111 // RDMA_PS_UDP
)

// Commands are refused as the kernel refuses them.
func TestCommandsThatAreRefused(t *testing.T) {
	if !modeltest.On(t, modeltest.Config{Network: true}) {
		return
	}
	const resolveRoute, connect, listen, reject, initAttr, getOption, setOption, migrate, bind, resolveAddr = 4, 6, 7, 9, 11, 13, 14, 18, 20, 21
	d, other := &dialer{t, open(t), 0}, &dialer{t, open(t), 0}
	ids := func(id, value uint32) []byte { return le.AppendUint32(le.AppendUint32(nil, id), value) }
	address := func(id uint32, at netip.AddrPort) []byte {
		b := make([]byte, 136)
		le.PutUint32(b, id)
		le.PutUint16(b[4:], 16)
		le.PutUint16(b[8:], unix.AF_INET)
		be.PutUint16(b[10:], at.Port())
		copy(b[12:], at.Addr().AsSlice())
		return b
	}
	var values [][]byte // which commands point to
	option := func(id, name, size uint32, v byte) []byte {
		value := []byte{v, 0, 0, 0}
		values = append(values, value)
		b := le.AppendUint64(nil, uint64(uintptr(unsafe.Pointer(&value[0]))))
		for _, word := range []uint32{id, 0, name, size} {
			b = le.AppendUint32(b, word)
		}
		return b
	}
	const reuse, only, ackTimeout = 1, 2, 3
	any := netip.IPv4Unspecified()
	rc, ud, listening, wild := d.create(tcp), d.create(udp), d.create(tcp), d.create(tcp)
	d.command(bind, address(listening, netip.AddrPortFrom(first, served)), 0)
	d.command(listen, ids(listening, 1), 0)
	d.command(bind, address(wild, netip.AddrPortFrom(any, served+1)), 0)
	d.command(setOption, option(rc, ackTimeout, 1, 14), 0)
	d.command(setOption, option(wild, reuse, 4, 1), 0)
	room := map[uint32]int{migrate: 4} // for the answers of commands
	for _, test := range []struct {
		name    string
		from    *dialer
		command uint32
		body    []byte
		errno   unix.Errno
	}{
		{"a command that does not exist", d, 23, nil, unix.EINVAL},
		{"a command that no kernel has", d, getOption, nil, unix.ENOSYS},
		{"an id that does not exist", d, resolveRoute, ids(1<<20, 0), unix.ENOENT},
		{"an id of another file", other, resolveRoute, ids(rc, 0), unix.EINVAL},
		{"a route without an address", d, resolveRoute, ids(rc, 0), unix.EINVAL},
		{"to listen twice", d, listen, ids(listening, 1), unix.EINVAL},
		{"to bind twice", d, bind, address(wild, netip.AddrPortFrom(any, served+2)), unix.EINVAL},
		{"an address in use", d, bind, address(rc, netip.AddrPortFrom(first, served)), unix.EADDRINUSE},
		{"any address beside one in use", d, bind, address(rc, netip.AddrPortFrom(any, served)), unix.EADDRNOTAVAIL},
		{"any address beside any", d, bind, address(rc, netip.AddrPortFrom(any, served+1)), unix.EADDRNOTAVAIL},
		{"an address that the host has not", d, bind, address(rc, netip.MustParseAddrPort("192.0.2.1:1")), unix.EADDRNOTAVAIL},
		{"a timeout of a datagram service", d, setOption, option(ud, ackTimeout, 1, 14), unix.EINVAL},
		{"an option of another size", d, setOption, option(rc, ackTimeout, 4, 14), unix.EINVAL},
		{"an option that does not exist", d, setOption, option(rc, 99, 4, 0), unix.ENOSYS},
		{"reuse of who listens", d, setOption, option(listening, reuse, 4, 1), unix.EINVAL},
		{"no reuse of who has an address", d, setOption, option(wild, reuse, 4, 0), unix.EINVAL},
		{"one family for who listens", d, setOption, option(listening, only, 4, 1), unix.EINVAL},
		// What is wrong with the rest of a command comes before an id that does not exist.
		{"a connection without parameters", d, connect, make([]byte, 288), unix.EINVAL},
		{"a reason that is none", d, reject, append(le.AppendUint32(nil, 1<<20), 0, 1, 0, 0), unix.EINVAL},
		{"an address of no size", d, bind, make([]byte, 136), unix.EINVAL},
		{"a destination of no size", d, resolveAddr, make([]byte, 272), unix.EINVAL},
		{"an id from a descriptor that is closed", d, migrate, append(make([]byte, 12), 0xff, 0xff, 0xff, 0xff), unix.ENOENT},
		{"an id from a file of another kind", d, migrate, append(make([]byte, 12), 0, 0, 0, 0), unix.EINVAL},
	} {
		require.ErrorIs(t, test.from.try(test.command, test.body, room[test.command]), test.errno, test.name)
	}
	runtime.KeepAlive(values)
	require.ErrorIs(t, d.try(initAttr, append(make([]byte, 8), 0, 0, 0x10, 0, 7, 0, 0, 0), 144), unix.EINVAL, "a state that does not exist")

	const joinGroup, leaveGroup = 22, 17
	group := func(id uint32, flags uint16) []byte {
		b := make([]byte, 152)
		le.PutUint32(b[16:], id)
		le.PutUint16(b[20:], 16)
		le.PutUint16(b[22:], flags)
		copy(b[24:], address(0, netip.MustParseAddrPort("239.1.2.3:0"))[8:])
		return b
	}
	for _, test := range []struct {
		name    string
		command uint32
		body    []byte
		out     int
		errno   unix.Errno
	}{
		{"a group, and no room for its number", joinGroup, group(ud, 0), 0, unix.ENOSPC},
		{"a group of who has no address", joinGroup, group(ud, 0), 4, unix.EINVAL},
		{"a group of who listens", joinGroup, group(listening, 0), 4, unix.EINVAL},
		{"a group in a way that does not exist", joinGroup, group(ud, 2), 4, unix.EINVAL},
		{"to leave a group that nobody has joined", leaveGroup, make([]byte, 16), 4, unix.ENOENT},
	} {
		require.ErrorIs(t, d.try(test.command, test.body, test.out), test.errno, test.name)
	}
	d.command(bind, address(ud, netip.AddrPortFrom(first, served)), 0)
	answer := make([]byte, 4)
	values = append(values, answer)
	join := group(ud, 0)
	le.PutUint64(join, uint64(uintptr(unsafe.Pointer(&answer[0]))))
	d.command(joinGroup, join, len(answer))
	leave := le.AppendUint64(nil, uint64(uintptr(unsafe.Pointer(&answer[0]))))
	leave = append(append(leave, answer...), 0, 0, 0, 0)
	require.ErrorIs(t, other.try(leaveGroup, leave, len(answer)), unix.EINVAL, "to leave a group that another file has joined")
	d.command(leaveGroup, leave, len(answer))
	runtime.KeepAlive(values)
}

// What the connection manager says of the QPs of both sides fits together: packet numbers, READs, and
// retries, of which each side asks the other for those of RNR.
func TestBothSidesAreToldAttributesThatFit(t *testing.T) {
	if !modeltest.On(t, modeltest.Config{Network: true}) {
		return
	}
	const accept, initAttr = 8, 11
	l, d := &dialer{t, open(t), 0}, &dialer{t, open(t), 0}
	l.listen(1)
	param := func(resources, depth, retry, rnrRetry byte) []byte {
		b := make([]byte, 272)
		b[266], b[267], b[269], b[270], b[271] = resources, depth, retry, rnrRetry, 1
		return b
	}
	d.resolve(netip.AddrPortFrom(first, served))
	d.command(6, append(le.AppendUint32(param(4, 2, 3, 5), d.id), make([]byte, 12)...), 0)
	l.id = le.Uint32(l.event(4, false)[8:])
	l.command(accept, append(append(le.AppendUint64(nil, 8), param(1, 3, 6, 2)...), le.AppendUint64(nil, uint64(l.id))...), 0)
	d.event(5, false)
	attr := func(d *dialer, state uint32) []byte {
		answer := make([]byte, 144)
		b := le.AppendUint64(nil, uint64(uintptr(unsafe.Pointer(&answer[0]))))
		d.command(initAttr, le.AppendUint32(le.AppendUint32(b, d.id), state), len(answer))
		return answer
	}
	const rtr, rts, rqPSN, sqPSN, sends, takes, retry, rnrRetry = 2, 3, 24, 28, 130, 131, 135, 136
	for _, sides := range [][2]*dialer{{l, d}, {d, l}} {
		to, from := attr(sides[0], rtr), attr(sides[1], rts)
		require.Equal(t, le.Uint32(to[rqPSN:]), le.Uint32(from[sqPSN:]))
		require.Equal(t, to[takes], from[sends])
		require.EqualValues(t, 3, from[retry])
	}
	require.EqualValues(t, 2, attr(d, rts)[rnrRetry])
	require.EqualValues(t, 5, attr(l, rts)[rnrRetry])
}

// A request for which a listener has no room is not answered, and sent again.
func TestARequestToAFullBacklogComesAgain(t *testing.T) {
	if !modeltest.On(t, modeltest.Config{Network: true}) {
		return
	}
	l := &dialer{t, open(t), 0}
	l.listen(1)
	var dialers []*dialer
	for _, private := range []string{"a", "b", "c", "d", "e"} {
		d := &dialer{t, open(t), 0}
		d.resolve(netip.AddrPortFrom(first, served))
		d.request(private)
		dialers = append(dialers, d)
	}
	dialers[1].destroy()
	for _, private := range []string{"a", "c"} {
		require.Equal(t, private, string(l.event(4, true)[28:29]))
	}
	l.destroy()
	require.Equal(t, eventRejected{28, ""}, dialers[3].rejected(true), "it was not read")
	require.Equal(t, eventRejected{8, ""}, dialers[4].rejected(true), "nobody listens when it comes again")
}

type eventRejected struct {
	reason int
	data   string
}

// A dialer is an id in a descriptor of its own.
type dialer struct {
	*testing.T
	fd int
	id uint32
}

func open(t *testing.T) int {
	fd, err := unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	return fd
}

func (d *dialer) command(number uint32, body []byte, out int) {
	d.Helper()
	require.NoError(d, d.try(number, body, out), "command %d", number)
}

func (d *dialer) try(number uint32, body []byte, out int) error {
	d.Helper()
	b := le.AppendUint32(nil, number)
	b = le.AppendUint16(b, uint16(len(body)))
	b = append(le.AppendUint16(b, uint16(out)), body...)
	n, err := unix.Write(d.fd, b)
	if err == nil {
		require.Equal(d, len(b), n)
	}
	return err
}

// create makes an id of a port space.
func (d *dialer) create(space uint16) uint32 {
	d.Helper()
	answer := make([]byte, 4)
	b := le.AppendUint64(nil, 7)
	b = le.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&answer[0]))))
	d.command(0, append(le.AppendUint16(b, space), 2, 0, 0, 0, 0, 0), 4)
	return le.Uint32(answer)
}

// listen makes an id that listens.
func (d *dialer) listen(backlog uint32) {
	d.Helper()
	const listen, bind = 7, 20
	d.id = d.create(tcp)
	b := make([]byte, 136)
	le.PutUint32(b, d.id)
	le.PutUint16(b[4:], 16)
	le.PutUint16(b[8:], unix.AF_INET)
	be.PutUint16(b[10:], served)
	copy(b[12:], first.AsSlice())
	d.command(bind, b, 0)
	d.command(listen, le.AppendUint32(le.AppendUint32(nil, d.id), backlog), 0)
}

// event waits for an event of a kind. The call blocks; or poll says that there is one.
func (d *dialer) event(kind uint32, poll bool) []byte {
	d.Helper()
	if poll {
		await := func() (int, error) {
			return unix.Poll([]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}, int(20*time.Second/time.Millisecond))
		}
		n, err := await()
		for err == unix.EINTR {
			n, err = await()
		}
		require.NoError(d, err)
		require.Equal(d, 1, n, "there is an event")
	}
	answer := make([]byte, 336)
	d.command(12, le.AppendUint64(nil, uint64(uintptr(unsafe.Pointer(&answer[0])))), len(answer))
	require.Equal(d, kind, le.Uint32(answer[12:]), "event")
	return answer
}

func (d *dialer) destroy() {
	d.Helper()
	answer := make([]byte, 4)
	b := le.AppendUint64(nil, uint64(uintptr(unsafe.Pointer(&answer[0]))))
	d.command(1, append(le.AppendUint32(b, d.id), 0, 0, 0, 0), 4)
}

func (d *dialer) resolve(to netip.AddrPort) {
	d.Helper()
	d.id = d.create(tcp)
	b := make([]byte, 272)
	le.PutUint32(b, d.id)
	le.PutUint16(b[10:], 16)
	le.PutUint16(b[144:], unix.AF_INET)
	be.PutUint16(b[146:], to.Port())
	copy(b[148:], to.Addr().AsSlice())
	d.command(21, b, 0)
	d.event(0, true)
	d.command(4, append(le.AppendUint32(nil, d.id), 0, 0, 0, 0), 0)
	d.event(2, false)
}

func (d *dialer) connect(private string) eventRejected {
	d.Helper()
	d.request(private)
	return d.rejected(false)
}

func (d *dialer) request(private string) {
	d.Helper()
	b := make([]byte, 288)
	copy(b[8:], private)
	b[264], b[271] = byte(len(private)), 1
	le.PutUint32(b[272:], d.id)
	d.command(6, b, 0)
}

// rejected waits for the answer to request as event does.
func (d *dialer) rejected(poll bool) eventRejected {
	d.Helper()
	e := d.event(8, poll)
	data := e[28:]
	for n := range data {
		if data[n] == 0 {
			data = data[:n]
			break
		}
	}
	return eventRejected{int(le.Uint32(e[16:])), string(data)}
}
