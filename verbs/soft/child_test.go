//go:build linux

package soft_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/serial"
	"github.com/stretchr/testify/require"
)

// The tests that need two processes start this binary again; the variable
// names what the child does. It connects to its parent over pipes: each side
// writes its address as JSON, the child a line when it is ready.
const roleVariable = "SOFT_TEST_ROLE"

var roles = map[string]func(e *end, in io.Reader, out io.Writer) error{
	"echo": func(e *end, _ io.Reader, _ io.Writer) error { return echoForever(e, spinFor) },
	"echo-parked": func(e *end, _ io.Reader, _ io.Writer) error {
		return echoForever(e, sleepFor((*verbs.CompChannel).Wait))
	},
	"echo-thread": func(e *end, _ io.Reader, _ io.Writer) error {
		return echoForever(e, sleepFor((*verbs.CompChannel).WaitThread))
	},
	"idle":   waitForever,
	"sender": sendForever,
	"burst":  sendBurst,
}

func TestMain(m *testing.M) {
	serial.PaysAfter = 1 // most tests make few calls
	if role := os.Getenv(roleVariable); role != "" {
		if err := runRole(role); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// alone are the roles that have no peer.
var alone = map[string]func() error{
	"few-descriptors":          fewDescriptors,
	"close-beside-post":        closeBesidePost,
	"create-beside-close":      createBesideClose,
	"close-cq-beside-create":   closeCQBesideCreate,
	"close-at-mappings' limit": closeAtLimitOfMappings,
}

// runAlone runs one of them and waits for its end.
func runAlone(t *testing.T, role string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func runRole(name string) error {
	if f, ok := alone[name]; ok {
		return f()
	}
	e, err := makeEnd(usual)
	if err != nil {
		return err
	}
	own, err := e.address()
	if err != nil {
		return err
	}
	out, in := json.NewEncoder(os.Stdout), json.NewDecoder(os.Stdin)
	var peer address
	if err := out.Encode(own); err != nil {
		return err
	}
	if err := in.Decode(&peer); err != nil {
		return err
	}
	e.peer = peer
	if err := e.connect(peer); err != nil {
		return err
	}
	if err := roles[name](e, os.Stdin, os.Stdout); err != nil {
		return err
	}
	return e.close()
}

// child is a process that plays a role, connected to e.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

func startChild(t testing.TB, role string, e *end) *child {
	t.Helper()
	c, err := spawn(role, e)
	require.NoError(t, err)
	t.Cleanup(c.kill)
	return c
}

func spawn(role string, e *end) (*child, error) {
	c := &child{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), roleVariable+"="+role)
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.in, c.out = in, json.NewDecoder(out)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	own, err := e.address()
	if err == nil {
		err = json.NewEncoder(in).Encode(own)
	}
	if err == nil {
		err = c.out.Decode(&e.peer)
	}
	if err == nil {
		err = e.connect(e.peer)
	}
	if err != nil {
		c.kill()
	}
	return c, err
}

// kill ends the child without warning.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended already
	_ = c.cmd.Wait()
	_ = c.in.Close()
}

// spin polls until something comes.
func spin(cq *verbs.CQ, wcs []verbs.WC) (int, error) {
	for {
		if n, err := cq.Poll(wcs); n != 0 || err != nil {
			return n, err
		}
	}
}

func spinFor(e *end, wcs []verbs.WC) (int, error) { return spin(e.recv, wcs) }

// sleepFor polls, arms, polls and sleeps.
func sleepFor(wait func(*verbs.CompChannel, time.Time) error) func(*end, []verbs.WC) (int, error) {
	return func(e *end, wcs []verbs.WC) (int, error) {
		for {
			if n, err := e.recv.Poll(wcs); n != 0 || err != nil {
				return n, err
			}
			if err := e.recv.Arm(false); err != nil {
				return 0, err
			}
			if n, err := e.recv.Poll(wcs); n != 0 || err != nil {
				return n, err
			}
			if err := wait(e.ch, time.Time{}); err != nil {
				return 0, err
			}
		}
	}
}

// echoForever answers each WRITE with one of the same length, until the peer
// is gone. next waits for completions.
func echoForever(e *end, next func(*end, []verbs.WC) (int, error)) error {
	recvs := make([]verbs.RecvWR, 32)
	if _, err := e.qp.PostRecv(recvs); err != nil {
		return err
	}
	wcs := make([]verbs.WC, 16)
	for {
		n, err := next(e, wcs)
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if wcs[i].Status != verbs.WCSuccess {
				return nil
			}
			wr := [1]verbs.SendWR{{
				Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline, Imm: wcs[i].Imm,
				Inline: [][]byte{e.mr.Bytes()[:wcs[i].ByteLen]}, RemoteAddr: e.peer.Addr, RKey: e.peer.RKey,
			}}
			if _, err := e.qp.PostSend(wr[:]); err != nil {
				return err
			}
		}
		if _, err := e.qp.PostRecv(recvs[:n]); err != nil {
			return err
		}
	}
}

// waitForever posts receives and does nothing else.
func waitForever(e *end, in io.Reader, out io.Writer) error {
	if _, err := e.qp.PostRecv(make([]verbs.RecvWR, 64)); err != nil {
		return err
	}
	fmt.Fprintln(out, `"ready"`)
	_, err := io.Copy(io.Discard, in)
	return err
}

// sendForever fills the peer's memory as fast as it can.
func sendForever(e *end, _ io.Reader, _ io.Writer) error {
	data := make([]byte, 16<<10)
	for i := uint32(0); ; i++ {
		wr := [1]verbs.SendWR{{
			Opcode: verbs.OpWriteWithImm, Flags: verbs.SendInline, Imm: i,
			Inline: [][]byte{data}, RemoteAddr: e.peer.Addr, RKey: e.peer.RKey,
		}}
		for {
			n, err := e.qp.PostSend(wr[:])
			if n == 1 {
				break
			}
			if n, err := e.send.Poll(make([]verbs.WC, 1)); n != 0 || err != nil {
				return err
			}
			if err != nil {
				time.Sleep(10 * time.Microsecond)
			}
		}
	}
}

// burst is how many messages sendBurst sends.
const burst = 17

// sendBurst sends some messages, says so, and waits.
func sendBurst(e *end, in io.Reader, out io.Writer) error {
	for i := range uint32(burst) {
		wr := []verbs.SendWR{{Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: i}}
		if _, err := e.qp.PostSend(wr); err != nil {
			return err
		}
		if _, err := spin(e.send, make([]verbs.WC, 1)); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, `"sent"`)
	_, err := io.Copy(io.Discard, in)
	return err
}
