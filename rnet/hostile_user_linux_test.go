package rnet

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

// hostile is a peer of another user, in a process of its own, whom a rule lets in.
type hostile struct {
	address string
	fabric  rcm.Fabric
	orders  *bufio.Scanner
}

// do does one of the bad things of a kind, and says whether its session has ended.
func (h hostile) do(kind string, which int) string {
	p, err := rawPeerBy(h.fabric)
	if err != nil {
		return err.Error()
	}
	defer p.close()
	hello := p.hello()
	if kind == "nonsense" {
		nonsense[which].change(&hello)
		if err := p.dial(h.address, hello.Marshal()); err == nil {
			return "it was let in"
		}
		return "refused"
	}
	if err := errors.Join(p.dial(h.address, hello.Marshal()), p.greet(), p.open(0)); err != nil {
		return err.Error()
	}
	if !h.orders.Scan() { // told when the stream was accepted
		return "nobody wants it"
	}
	if kind == "scribble" {
		if err := scribble(); err != nil {
			return err.Error()
		}
		p.send(frame(mux.FramePing, 0, 0, nil)) // wakes who reads it
		return "scribbled"
	}
	if err := attacks[which].do(p, nil); err != nil {
		return err.Error()
	}
	for end := time.Now().Add(hang.Time); !p.gone(); hang.Pause() {
		if time.Now().After(end) {
			return "the session goes on"
		}
	}
	return "ended"
}

// scribble writes noise over all memory that this process shares with its peers, again and again.
func scribble() error {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	var shared [][]byte
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var from, to uintptr
		var rights string
		if !strings.Contains(lines.Text(), "/memfd:ramjet-") {
			continue
		}
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &rights); err != nil {
			return err
		}
		if rights == "rw-s" {
			shared = append(shared, unsafe.Slice((*byte)(unsafe.Add(nil, from)), to-from))
		}
	}
	if len(shared) < 3 { // the segments of both QPs, and a ring
		return fmt.Errorf("only %d mappings are shared", len(shared))
	}
	for range 3 {
		for _, memory := range shared {
			rand.Read(memory)
		}
	}
	return nil
}

// What a peer of another user does to whom it may dial, by a rule, is no more than what one of
// the same user can: it ends its own session.
func TestAdmittedPeersOfOtherUsersHurtThemselvesAlone(t *testing.T) {
	const key = "key0123456789abcdef"
	admitted := [][2]string{ // of the listener and of those who dial
		{"user1000", "user0"},
		{"group1000", "group0"},
		{key, key},
	}
	for _, rules := range admitted[:orRaced(len(admitted), 1)] {
		t.Run(strings.TrimRight(rules[0], "0123456789abcdef"), func(t *testing.T) { admittedPeers(t, rules[0], rules[1]) })
	}
}

func admittedPeers(t *testing.T, own, theirs string) {
	leak.Check(t)
	other := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	peer, honest := oneProcess(t, "", other), oneProcess(t, "", other)
	// An address that is nobody's (RFC 5737): what listens there is found in a directory alone.
	const nobody = "192.0.2.1"
	way, err := net.Dial("udp4", nobody+":9")
	skip.Because(t, err) // which a dial asks for
	require.NoError(t, way.Close())
	dir := meetingPlace(t)
	lc := ListenConfig{Transport: Soft, Dir: dir, Allow: allow([]string{own}), Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }), err)
	}}
	ln, err := lc.Listen(t.Context(), "tcp4", nobody+":0")
	require.NoError(t, err)
	defer ln.Close()
	address := ln.Addr().String()
	names := func() []string {
		list, err := filepath.Glob(filepath.Join(dir, "*", "[0-9]*"))
		require.NoError(t, err)
		return list
	}
	place := filepath.Join(dir, "0", address)
	require.Equal(t, []string{place}, names())

	tell := func(c *container, words ...string) {
		_, err := c.orders.WriteString(strings.Join(append(words, address, dir, theirs), " ") + "\n")
		require.NoError(t, err)
	}
	accept := func() (c *Conn) {
		hang.Start(t, func() {
			accepted, err := ln.Accept()
			if assert.NoError(t, err) {
				c = accepted.(*Conn)
			}
		})()
		require.NotNil(t, c)
		return c
	}
	// goes on all the time
	dialed, err := (&Dialer{Transport: Soft, Dir: dir}).Dial("tcp4", address)
	require.NoError(t, err)
	defer dialed.Close()
	kept := accept()
	defer kept.Close()
	othersGoOn := func() {
		t.Helper()
		text := []byte("of the same user")
		_, err := dialed.Write(text)
		require.NoError(t, err)
		kept.SetReadDeadline(time.Now().Add(hang.Time))
		got := make([]byte, len(text))
		_, err = io.ReadFull(kept, got)
		require.NoError(t, err)
		require.Equal(t, text, got)
		tell(honest, "stream")
		conn := accept()
		io.Copy(conn, conn) // ended by the other side
		conn.Close()
		require.Contains(t, honest.Line(t), "*rnet.Conn")
	}
	othersGoOn()

	for i, n := range nonsense {
		tell(peer, "nonsense", strconv.Itoa(i))
		require.Equal(t, "refused", peer.Line(t), n.name)
	}
	othersGoOn()
	// suffer lets the peer do something to a session, which is to end with ECONNRESET.
	suffer := func(what, kind string, which int, end func()) {
		t.Helper()
		tell(peer, kind, strconv.Itoa(which))
		victim := accept()
		defer victim.Close()
		await := hang.Start(t, func() { assert.NoError(t, writeUntilError(victim), what) })
		_, err := peer.orders.WriteString("go\n")
		require.NoError(t, err)
		end()
		await()
		othersGoOn()
	}
	for i, attack := range attacks {
		suffer(attack.name, "attack", i, func() { require.Equal(t, "ended", peer.Line(t), attack.name) })
	}
	for range 3 {
		peer = oneProcess(t, "", other) // nor can it go on itself after that
		suffer("noise in all that is shared", "scribble", 0, func() {
			require.Equal(t, "scribbled", peer.Line(t))
			peer.Kill()
		})
	}

	// What no peer says, and descriptors that nobody wants, at the socket itself.
	rude := roles.StartIfAllowed(t, func(cmd *exec.Cmd) { cmd.SysProcAttr = other }, "strange", "0005"+place)
	require.Equal(t, "begun", rude.Line(t))
	othersGoOn()
	require.Regexp(t, "^[0-9]+ kinds, ", rude.Line(t))
	rude.Stop()
	othersGoOn()
	require.Equal(t, []string{place}, names())
	require.NoError(t, ln.Close())
	require.Empty(t, names())
}
