//go:build amd64 || arm64

package modeltest_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/modeltest"
)

func TestMain(m *testing.M) {
	modeltest.Main()
	os.Exit(m.Run())
}

func TestDevicesAreListed(t *testing.T) {
	for _, test := range []struct {
		name      string
		config    modeltest.Config
		transport verbs.Transport
	}{
		{"InfiniBand", modeltest.Config{}, verbs.TransportIB},
		{"Ethernet", modeltest.Config{Device: mlx5.Config{Link: fabric.Ethernet}}, verbs.TransportRoCE},
	} {
		t.Run(test.name, func(t *testing.T) {
			if !modeltest.On(t, test.config) {
				return
			}
			list, err := verbs.Devices()
			require.NoError(t, err)
			require.Equal(t, "mlx5_0", list[0].Name)
			require.Equal(t, "mlx5", list[0].Driver)
			require.Equal(t, test.transport, list[0].Transport)
			require.NotZero(t, list[0].NodeGUID)
		})
	}
}

func TestRdmainfoShowsTheDevice(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: builds a program")
	}
	program := os.Getenv("RDMAINFO")
	if modeltest.Host() < 0 {
		program = filepath.Join(t.TempDir(), "rdmainfo")
		out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/seed-b9b531af/ramjet/examples/rdmainfo").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	if !modeltest.On(t, modeltest.Config{Device: mlx5.Config{Link: fabric.Ethernet}, Env: []string{"RDMAINFO=" + program}}) {
		return
	}
	// A program that this one starts is on the host too.
	out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, line := range []string{"mlx5_0: roce, driver mlx5", "firmware 16.35.1000", "GID 3: ::ffff:127.0.0.1 RoCE v2 lo",
		"/dev/infiniband/uverbs0 0666 root root: may be opened"} {
		require.Contains(t, string(out), line)
	}
}

func TestHostsExchange(t *testing.T) {
	if !modeltest.On(t, modeltest.Config{Hosts: 2}) {
		return
	}
	for i := range byte(3) {
		require.Equal(t, []byte{i, 1 - byte(modeltest.Host())}, modeltest.Exchange(t, []byte{i, byte(modeltest.Host())}))
	}
}

// A Go program does what a driver does, with its own system calls: dynamic and static UARs,
// commands in an ioctl and by write, queues, doorbells, a completion channel on the
// netpoller, while the garbage collector runs and goroutines are preempted by signals.
func TestAGoProgramUsesTheDevice(t *testing.T) {
	ethernet, static := mlx5.Config{Link: fabric.Ethernet}, mlx5.Config{Link: fabric.Ethernet, StaticUARs: true}
	for name, config := range map[string]modeltest.Config{
		"dynamic UARs":       {Device: ethernet},
		"static UARs":        {Device: static, Env: []string{"STATIC=true"}},
		"static UARs, write": {Device: static, WriteOnly: true, Env: []string{"STATIC=true", "WRITE=true"}},
		"hostile":            {Device: ethernet, Hostile: 1},
	} {
		config.Hosts = 2
		t.Run(name, func(t *testing.T) {
			if !modeltest.On(t, config) {
				return
			}
			var stop atomic.Bool
			defer stop.Store(true)
			for range 2 {
				go func() { // as any program does: it allocates, and has to be preempted
					for n := 0; !stop.Load(); n++ {
						if n%1000 == 0 {
							_ = make([]byte, 1<<16)
							runtime.Gosched()
						}
					}
				}()
			}
			c := open(t, os.Getenv("STATIC") == "true", os.Getenv("WRITE") == "true")
			q := c.newQueues()
			var peer address
			decode(modeltest.Exchange(t, encode(address{c.gid(3), q.qpn})), &peer)
			q.connect(peer)
			modeltest.Exchange(t, nil)
			const rounds = 40
			for i := range rounds {
				text := fmt.Appendf(nil, "message %d of host %d", i, modeltest.Host())
				if modeltest.Host() == 0 {
					q.send(text)
				}
				require.Equal(t, fmt.Sprintf("message %d of host %d", i, 1-modeltest.Host()), string(q.receive()))
				if modeltest.Host() == 1 {
					q.send(text)
				}
			}
			modeltest.Exchange(t, nil)
		})
	}
}

type address struct {
	GID [16]byte
	QPN uint32
}

func encode(a address) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, a) // fails only for types without a size
	return b
}

func decode(b []byte, a *address) { _, _ = binary.Decode(b, binary.LittleEndian, a) }

var (
	le = binary.LittleEndian
	be = binary.BigEndian
)

// A client is an open device, used as the raw bytes of the kernel's interface.
type client struct {
	*testing.T
	fd        int
	async     int
	write     bool
	memory    []byte // for the driver's queues and for commands: it does not move
	used      int
	uar       []byte
	page      uint32 // of the UAR
	uarFlags  uint32 // of CREATE_CQ
	qpFlags   uint32
	static    bool
	pd        uint32
	ioctlArea []byte
}

func open(t *testing.T, static, write bool) *client {
	t.Helper()
	fd, err := unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	memory, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	c := &client{T: t, fd: fd, write: write, memory: memory, static: static}
	c.ioctlArea = c.alloc(4096)
	t.Cleanup(func() {
		require.NoError(t, unix.Close(c.async))
		require.NoError(t, unix.Close(fd))
	})
	request := make([]byte, 32) // struct mlx5_ib_alloc_ucontext_req_v2
	le.PutUint32(request, 16)
	le.PutUint32(request[4:], 4)
	request[16], request[24] = 1, 3
	core, driver := c.command(0, nil, 8, request, 72)
	c.async = int(le.Uint32(core))
	total := le.Uint32(driver[8:])
	require.Equal(t, static, total != 0, "registers of the context")
	offset := int64(3<<8) * 4096 // MLX5_IB_MMAP_NC_PAGE
	if !static {
		offset = c.allocUAR()
		c.uarFlags, c.qpFlags = 2, 1<<10
	}
	c.uar, err = unix.Mmap(fd, offset, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	_, err = unix.Mmap(fd, 200*4096, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EINVAL, "there is no such page")
	core, _ = c.command(3, nil, 4, nil, 4)
	c.pd = le.Uint32(core)
	return c
}

// alloc returns memory that begins a page.
func (c *client) alloc(n int) []byte {
	b := c.memory[c.used : c.used+n : c.used+n]
	c.used += (n + 4095) &^ 4095
	return b
}

func at(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

// command runs a command. core is its struct behind the pointer to the answer.
func (c *client) command(number uint32, core []byte, coreOut int, driver []byte, driverOut int) (coreAnswer, driverAnswer []byte) {
	c.Helper()
	area := c.ioctlArea
	clear(area)
	answer := area[2048:]
	in := append(make([]byte, 8), core...)
	if number == 26 { // MODIFY_QP has no answer
		in = in[8:]
	}
	if c.write {
		if number != 26 {
			le.PutUint64(in, at(answer))
		}
		in = append(in, driver...)
		b := le.AppendUint32(nil, number)
		b = le.AppendUint16(b, uint16(8+len(in))/4)
		b = le.AppendUint16(b, uint16(coreOut+driverOut)/4)
		n, err := unix.Write(c.fd, append(b, in...))
		require.NoError(c, err, "command %d", number)
		require.Equal(c, 8+len(in), n)
		return bytes.Clone(answer[:coreOut]), bytes.Clone(answer[coreOut:][:driverOut])
	}
	copy(area[512:], in)
	copy(area[1024:], driver)
	attributes := []attribute{{0, len(in), at(area[512:])}, {2, 8, uint64(number)}}
	if coreOut > 0 {
		attributes = append(attributes, attribute{1, coreOut, at(answer)})
	}
	if len(driver) > 0 {
		attributes = append(attributes, attribute{0x1000, len(driver), at(area[1024:])})
	}
	if driverOut > 0 {
		attributes = append(attributes, attribute{0x1001, driverOut, at(answer[coreOut:])})
	}
	require.NoError(c, c.ioctl(0, 0, attributes), "command %d", number)
	return bytes.Clone(answer[:coreOut]), bytes.Clone(answer[coreOut:][:driverOut])
}

type attribute struct {
	id   uint16
	size int
	data uint64
}

// ioctl runs a method whose attributes are laid out at the beginning of the area.
func (c *client) ioctl(object, method uint16, attributes []attribute) error {
	b := c.ioctlArea
	le.PutUint16(b, uint16(24+16*len(attributes)))
	le.PutUint16(b[2:], object)
	le.PutUint16(b[4:], method)
	le.PutUint16(b[6:], uint16(len(attributes)))
	le.PutUint32(b[16:], 1) // RDMA_DRIVER_MLX5
	for i, a := range attributes {
		e := b[24+16*i:]
		le.PutUint16(e, a.id)
		le.PutUint16(e[2:], uint16(a.size))
		le.PutUint16(e[4:], 1) // mandatory
		le.PutUint64(e[8:], a.data)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), 0xc0181b01, uintptr(unsafe.Pointer(&b[0]))); errno != 0 {
		return errno
	}
	return nil
}

// allocUAR allocates a UAR that is not cached, and returns where it is mapped.
func (c *client) allocUAR() int64 {
	clear(c.ioctlArea)
	out := c.ioctlArea[2048:]
	require.NoError(c, c.ioctl(0x1008, 0x1000, []attribute{{0x1000, 0, 0}, {0x1001, 8, 1}, {0x1002, 8, at(out)},
		{0x1003, 4, at(out[8:])}, {0x1004, 4, at(out[16:])}}))
	require.NotZero(c, le.Uint64(c.ioctlArea[24+8:]), "the handle")
	require.EqualValues(c, 3, le.Uint16(c.ioctlArea[24+2*16+4:]), "the offset is marked as written")
	require.EqualValues(c, 4096, le.Uint32(out[8:]))
	c.page = le.Uint32(out[16:])
	return int64(le.Uint64(out))
}

// gid reads a row of the GID table.
func (c *client) gid(index int) [16]byte {
	b, err := os.ReadFile(fmt.Sprintf("/sys/class/infiniband/mlx5_0/ports/1/gids/%d", index))
	require.NoError(c, err)
	var gid [16]byte
	for i, hex := range bytes.Split(bytes.TrimSpace(b), []byte(":")) {
		_, err := fmt.Sscanf(string(hex), "%04x", new(int))
		require.NoError(c, err)
		var n uint16
		_, _ = fmt.Sscanf(string(hex), "%x", &n)
		be.PutUint16(gid[2*i:], n)
	}
	return gid
}

// queues are an RC QP with a CQ, and a buffer for one message each way.
type queues struct {
	*client
	channel                     *os.File
	cqes, cqRecord, wqes        []byte
	record, out, in             []byte
	cqn, handle, qpn, key       uint32
	registers                   []byte // the page of the send doorbell
	register                    int
	sent, received, seen, armed uint32
}

const entries = 16 // of each queue

func words(values ...uint32) (b []byte) {
	for _, v := range values {
		b = le.AppendUint32(b, v)
	}
	return b
}

func quads(values ...uint64) (b []byte) {
	for _, v := range values {
		b = le.AppendUint64(b, v)
	}
	return b
}

func (c *client) newQueues() *queues {
	q := &queues{client: c, cqes: c.alloc(entries * 64), cqRecord: c.alloc(8), wqes: c.alloc(entries*16 + entries*64), record: c.alloc(8),
		out: c.alloc(4096), in: c.alloc(4096)}
	for i := range entries {
		q.cqes[i*64+63] = 0xf0
	}
	core, _ := c.command(17, nil, 4, nil, 0)
	require.NoError(c, unix.SetNonblock(int(le.Uint32(core)), true))
	q.channel = os.NewFile(uintptr(le.Uint32(core)), "channel")
	c.Cleanup(func() { require.NoError(c, q.channel.Close()) })
	core, driver := c.command(18, append(quads(1), words(entries-1, 0, le.Uint32(core), 0)...), 8,
		append(quads(at(q.cqes), at(q.cqRecord)), words(64, c.uarFlags<<16, c.page, 0)...), 8)
	cq := le.Uint32(core)
	q.cqn = le.Uint32(driver)
	core, driver = c.command(24, append(append(quads(2), words(c.pd, cq, cq, 0, entries, entries, 1, 1, 0)...), 1, 2, 0, 0), 32,
		append(append(quads(at(q.wqes), at(q.record)), words(entries, entries, 4, c.qpFlags, 9, c.page)...), make([]byte, 16)...), 40)
	q.handle, q.qpn = le.Uint32(core), le.Uint32(core[4:])
	q.registers, q.register = c.uar, 0x800
	if c.static {
		index := int(le.Uint32(driver)) // of a register: four in each page
		q.register += index % 4 * 512
		if page := index / 4; page != 0 {
			uar, err := unix.Mmap(c.fd, int64(page)*4096, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			require.NoError(c, err)
			q.registers = uar
		}
	}
	core, _ = c.command(9, append(quads(at(q.out), 2*4096, at(q.out)), words(c.pd, 1)...), 12, nil, 0)
	q.key = le.Uint32(core[4:])
	return q
}

func (q *queues) connect(peer address) {
	const (
		initMask = 1 | 1<<3 | 1<<4 | 1<<5
		rtrMask  = 1 | 1<<7 | 1<<8 | 1<<12 | 1<<17 | 1<<15 | 1<<20
		rtsMask  = 1 | 1<<9 | 1<<10 | 1<<11 | 1<<16 | 1<<13
	)
	for state, mask := range []uint32{1: initMask, 2: rtrMask, 3: rtsMask} {
		if mask == 0 {
			continue
		}
		b := make([]byte, 112)
		copy(b, peer.GID[:])
		b[24], b[30], b[31], b[104] = 3, 1, 1, 1 // GID index, global, ports
		le.PutUint32(b[64:], q.handle)
		le.PutUint32(b[68:], mask)
		le.PutUint32(b[84:], peer.QPN)
		b[96], b[98], b[101], b[102] = byte(state), 5, 1, 1
		b[103], b[105], b[106], b[107] = 1, 14, 7, 7
		q.command(26, b, 0, nil, 0)
		if state == 1 {
			q.post()
		}
	}
}

// post posts a receive.
func (q *queues) post() {
	segment := q.wqes[q.received%entries*16:][:16]
	be.PutUint32(segment, 4096)
	be.PutUint32(segment[4:], q.key)
	be.PutUint64(segment[8:], at(q.in))
	q.received++
	store32(q.record, q.received&0xffff)
}

func store32(b []byte, v uint32) {
	var raw [4]byte
	be.PutUint32(raw[:], v)
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[0])), le.Uint32(raw[:]))
}

func store64(b []byte, v uint64) {
	var raw [8]byte
	be.PutUint64(raw[:], v)
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[0])), le.Uint64(raw[:]))
}

// send sends a message and waits for its completion.
func (q *queues) send(text []byte) {
	copy(q.out, text)
	wqe := q.wqes[entries*16+q.sent%entries*64:][:64]
	clear(wqe)
	be.PutUint32(wqe, q.sent&0xffff<<8|0xa)
	be.PutUint32(wqe[4:], q.qpn<<8|2)
	wqe[11] = 8
	be.PutUint32(wqe[16:], uint32(len(text)))
	be.PutUint32(wqe[20:], q.key)
	be.PutUint64(wqe[24:], at(q.out))
	q.sent++
	store32(q.record[4:], q.sent&0xffff)
	store64(q.registers[q.register:], be.Uint64(wqe))
	require.EqualValues(q, 0, q.completion()[63]>>4)
}

// receive waits for a message, and posts the next receive.
func (q *queues) receive() []byte {
	e := q.completion()
	require.EqualValues(q, 2, e[63]>>4)
	text := bytes.Clone(q.in[:be.Uint32(e[44:])])
	q.post()
	return text
}

// completion waits for a CQE.
func (q *queues) completion() []byte {
	q.Helper()
	armed := false
	for {
		e := q.cqes[q.seen%entries*64:][:64]
		// The load of the last bytes orders those of the others behind it.
		last := atomic.LoadUint32((*uint32)(unsafe.Pointer(&e[60])))
		if owner := byte(last >> 24); owner>>4 != 0xf && uint32(owner&1) == q.seen/entries&1 {
			q.seen++
			found := bytes.Clone(e)
			store32(q.cqRecord, q.seen&0xffffff)
			require.Zero(q, found[55]*(found[63]>>4/13), "syndrome")
			return found
		}
		if !armed {
			command := q.armed&3<<28 | q.seen&0xffffff
			store32(q.cqRecord[4:], command)
			store64(q.uar[0x20:], uint64(command)<<32|uint64(q.cqn))
			armed = true
			continue
		}
		var event [8]byte
		require.NoError(q, q.channel.SetReadDeadline(time.Now().Add(30*time.Second)))
		_, err := q.channel.Read(event[:])
		require.NoError(q, err)
		q.armed++
		armed = false
	}
}
