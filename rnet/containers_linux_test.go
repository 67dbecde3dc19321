package rnet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/cgroup"
	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A container is a process in network, PID, IPC, UTS and mount namespaces of its own,
// that does what it is told by lines on its descriptor 3.
type container struct {
	*roles.Process
	ip     string
	orders *os.File
}

// Say tells it what to do, and returns what has come of that.
func (c *container) Say(t *testing.T, words ...string) string {
	t.Helper()
	_, err := c.orders.WriteString(strings.Join(words, " ") + "\n")
	require.NoError(t, err)
	return c.Line(t)
}

const separate = unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// twoContainers starts two that have a wire between them.
func twoContainers(t *testing.T) (a, b *container) {
	t.Helper()
	own := &syscall.SysProcAttr{Cloneflags: separate}
	return twoProcesses(t, own, own)
}

// twoProcesses starts two of these attributes. If their network namespaces are new they
// have a wire between them; if that of the first alone is, both are in it.
func twoProcesses(t *testing.T, first, second *syscall.SysProcAttr) (a, b *container) {
	t.Helper()
	for _, program := range []string{"ip", "nsenter"} {
		_, err := exec.LookPath(program)
		skip.Because(t, err)
	}
	switch {
	case first.Cloneflags&unix.CLONE_NEWNET == 0:
		return oneProcess(t, "127.0.0.1", first), oneProcess(t, "127.0.0.1", second)
	case second.Cloneflags&unix.CLONE_NEWNET == 0:
		return twoInOneNetwork(t, first, second)
	}
	a, b = oneProcess(t, "10.99.0.1", first), oneProcess(t, "10.99.0.2", second)
	add := exec.Command("ip", "link", "add", "wire", "netns", a.pid(), "type", "veth", "peer", "name", "wire", "netns", b.pid())
	if out, err := add.CombinedOutput(); err != nil {
		skip.Because(t, fmt.Errorf("it needs a pair of veth interfaces: %w: %s", err, out))
	}
	for _, c := range []*container{a, b} {
		do(t, "nsenter", "-t", c.pid(), "-n", "sh", "-c", "ip addr add "+c.ip+"/24 dev wire && ip link set wire up && ip link set lo up")
	}
	return a, b
}

// twoInOneNetwork starts two of these attributes in one new network namespace, which has an
// address of a network.
func twoInOneNetwork(t *testing.T, first, second *syscall.SysProcAttr) (a, b *container) {
	t.Helper()
	const ip = "10.99.0.1"
	a = oneProcess(t, ip, first)
	do(t, "nsenter", "-t", a.pid(), "-n", "sh", "-c", "ip addr add "+ip+"/24 dev lo && ip link set lo up")
	runtime.LockOSThread() // a child is in the namespace of the thread that starts it
	own, err := os.Open("/proc/thread-self/ns/net")
	require.NoError(t, err)
	defer own.Close()
	theirs, err := os.Open("/proc/" + a.pid() + "/ns/net")
	require.NoError(t, err)
	defer theirs.Close()
	require.NoError(t, unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET))
	b = oneProcess(t, ip, second) // if it does not return the thread ends
	require.NoError(t, unix.Setns(int(own.Fd()), unix.CLONE_NEWNET))
	runtime.UnlockOSThread()
	return a, b
}

// oneProcess starts one, whose address is ip.
func oneProcess(t *testing.T, ip string, attr *syscall.SysProcAttr) *container {
	t.Helper()
	theirs, ours, err := os.Pipe()
	require.NoError(t, err)
	defer theirs.Close()
	t.Cleanup(func() { ours.Close() })
	return &container{roles.StartIfAllowed(t, func(cmd *exec.Cmd) {
		cmd.SysProcAttr, cmd.ExtraFiles = attr, []*os.File{theirs}
	}, "container"), ip, ours}
}

func (c *container) pid() string { return strconv.Itoa(c.Cmd.Process.Pid) }

func (c *container) at(port int) string { return net.JoinHostPort(c.ip, strconv.Itoa(port)) }

func do(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
}

func init() {
	roles.Add("container", func([]string) error {
		listeners := make(map[string]net.Listener)
		for lines := bufio.NewScanner(os.NewFile(3, "orders")); lines.Scan(); {
			words := strings.Fields(lines.Text())
			switch words[0] {
			case "listen":
				lc := ListenConfig{Dir: words[2], Allow: allow(words[3:])}
				ln, err := lc.Listen(context.Background(), "tcp", words[1])
				if err == nil {
					listeners[words[1]] = ln
					go echoAll(ln) // ends with Close, or the process
				}
				fmt.Println("listens:", err)
			case "serve": // HTTP
				lc := ListenConfig{Dir: words[2]}
				ln, err := lc.Listen(context.Background(), "tcp", words[1])
				if err == nil {
					// ends with the process
					go http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						fmt.Fprintf(w, "%s comes from %s", r.URL.Path, r.RemoteAddr)
					}))
				}
				fmt.Println("listens:", err)
			case "get":
				fmt.Println(get("http://"+words[1]+"/file", Dialer{Dir: words[2], Transport: Soft}))
			case "close":
				fmt.Println("closed:", listeners[words[1]].Close())
			case "dial":
				fmt.Println(dialAndEcho(words[1], Dialer{Dir: words[2], Allow: allow(words[3:]), HeadStart: 5 * time.Second}))
			case "stream":
				fmt.Println(dialAndEcho(words[1], Dialer{Dir: words[2], Allow: allow(words[3:]), Transport: Soft}))
			case "nonsense", "attack", "scribble":
				which, _ := strconv.Atoi(words[1])
				h := hostile{words[2], softcm.New(softcm.Config{Directory: words[3], Allow: softcm.Rules(allow(words[4:]))}), lines}
				fmt.Println(h.do(words[0], which))
			}
		}
		return nil
	})
}

// get says what an HTTP server answers over what d dials.
func get(url string, d Dialer) string {
	client := http.Client{Transport: &http.Transport{DialContext: d.DialContext}, Timeout: 20 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Get(url)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return fmt.Sprintf("%s %v", text, err)
}

// allow reads rules: user1000, group2000, cgroup4711, keyTEXT.
func allow(words []string) (a Allow) {
	for _, word := range words {
		if key, ok := strings.CutPrefix(word, "key"); ok {
			a.Key = []byte(key)
			continue
		}
		if text, ok := strings.CutPrefix(word, "cgroup"); ok {
			id, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				panic(err)
			}
			a.Cgroups = append(a.Cgroups, id)
			continue
		}
		list, number := &a.Users, strings.TrimPrefix(word, "user")
		if gid, ok := strings.CutPrefix(word, "group"); ok {
			list, number = &a.Groups, gid
		}
		id, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			panic(err)
		}
		*list = append(*list, uint32(id))
	}
	return a
}

func echoAll(ln net.Listener) {
	for {
		s, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			io.Copy(s, s)
			s.Close()
		}()
	}
}

// dialAndEcho says what a dial has come to, after it has sent something and got it back.
func dialAndEcho(address string, d Dialer) string {
	conn, err := d.Dial("tcp", address)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	sent := strings.Repeat("echo ", 50_000)
	go io.WriteString(conn, sent) // ends with conn
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err.Error()
	}
	if string(got) != sent {
		return "other bytes came back"
	}
	return strings.Fields(fmt.Sprintf("%T %v", conn, conn.RemoteAddr()))[0] + " " + strings.ReplaceAll(fmt.Sprint(Explain(address)), "\n", " ")
}

// meetingPlace returns a directory in which each user may make their own.
func meetingPlace(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
	for parent := filepath.Dir(dir); parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		require.NoError(t, os.Chmod(parent, 0o755)) // other users come by here
	}
	return dir
}

func TestContainersMeetInADirectory(t *testing.T) {
	server, client := twoContainers(t)
	dir := meetingPlace(t)
	entries := func() (list []string) {
		names, err := filepath.Glob(filepath.Join(dir, "*", "[0-9]*"))
		require.NoError(t, err)
		for _, name := range names {
			if !strings.Contains(name, ":7004") { // which stays
				list = append(list, filepath.Base(name))
			}
		}
		return list
	}
	missing := filepath.Join(dir, "missing")
	for name, at := range map[string]string{"all addresses": ":7001", "one address": server.at(7001)} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, "listens: <nil>", server.Say(t, "listen", at, dir))
			require.Contains(t, client.Say(t, "dial", server.at(7001), dir), "*rnet.Conn")
			require.Contains(t, client.Say(t, "dial", server.at(7001), missing), "*net.TCPConn")
			require.Contains(t, client.Say(t, "dial", server.at(7001), "none"), "*net.TCPConn")
			require.Contains(t, server.Say(t, "dial", server.at(7001), dir), "*rnet.Conn", "in its own namespace it needs none")
			require.Equal(t, "closed: <nil>", server.Say(t, "close", at))
			require.Empty(t, entries())
			require.Contains(t, client.Say(t, "dial", server.at(7001), dir), "connection refused")
		})
	}
	t.Run("HTTP, and the peer's address", func(t *testing.T) {
		require.Equal(t, "listens: <nil>", server.Say(t, "serve", ":7004", dir))
		for range 3 {
			require.Regexp(t, `^/file comes from 10\.99\.0\.2:\d+ <nil>$`, client.Say(t, "get", server.at(7004), dir))
		}
	})
	t.Run("why there is nobody", func(t *testing.T) {
		require.Contains(t, client.Say(t, "get", server.at(7004), missing), "no such file or directory")
		unsafe := filepath.Join(dir, "unsafe")
		require.NoError(t, os.Mkdir(unsafe, 0o700))
		require.NoError(t, os.Chmod(unsafe, 0o777))
		require.Contains(t, client.Say(t, "get", server.at(7004), unsafe), "chmod +t")
		if names, _ := os.ReadDir("/sys/class/infiniband"); len(names) == 0 {
			require.Equal(t, "listens: <nil>", server.Say(t, "listen", ":7005", "none"))
			require.Regexp(t, `^\*net.TCPConn .*directory.*chmod \+t.*RNET_DIR`, client.Say(t, "dial", server.at(7005), unsafe), "Explain")
			require.Equal(t, "closed: <nil>", server.Say(t, "close", ":7005"))
		}
	})
	t.Run("loopback addresses are not there", func(t *testing.T) {
		require.Equal(t, "listens: <nil>", server.Say(t, "listen", "127.0.0.1:7002", dir))
		require.Empty(t, entries())
		require.Contains(t, client.Say(t, "dial", "127.0.0.1:7002", dir), "connection refused")
	})
	t.Run("a restart", func(t *testing.T) {
		require.Equal(t, "listens: <nil>", server.Say(t, "listen", ":7003", dir))
		require.Contains(t, client.Say(t, "dial", server.at(7003), dir), "*rnet.Conn")
		server.Kill()
		server.Stop()
		require.Equal(t, []string{server.at(7003) + "+"}, entries(), "what the dead have left")
		server, again := twoContainers(t)
		require.Contains(t, again.Say(t, "dial", server.at(7003), dir), "connection refused")
		require.Equal(t, "listens: <nil>", server.Say(t, "listen", ":7003", dir))
		require.Contains(t, again.Say(t, "dial", server.at(7003), dir), "*rnet.Conn")
		again.Kill()
		again.Stop()
	})
}

func TestContainersOfOtherUsersMeetIfBothSaySo(t *testing.T) {
	server, client := twoProcesses(t, &syscall.SysProcAttr{Cloneflags: separate}, &syscall.SysProcAttr{
		Cloneflags: separate, Credential: &syscall.Credential{Uid: 1000, Gid: 1000},
	})
	dir := meetingPlace(t)
	require.Equal(t, "listens: <nil>", server.Say(t, "listen", ":7001", dir))
	require.Contains(t, client.Say(t, "dial", server.at(7001), dir), "*net.TCPConn")
	require.Contains(t, client.Say(t, "dial", server.at(7001), dir, "user0"), "*net.TCPConn", "the listener has not named the dialer")
	require.Equal(t, "listens: <nil>", server.Say(t, "listen", ":7002", dir, "user999", "user1000"))
	require.Contains(t, client.Say(t, "dial", server.at(7002), dir), "*net.TCPConn", "the dialer has not named the listener")
	require.Contains(t, client.Say(t, "dial", server.at(7002), dir, "user0"), "*rnet.Conn")
	const key, other = "key0123456789abcdef", "keyfedcba9876543210"
	require.Equal(t, "listens: <nil>", server.Say(t, "listen", ":7003", dir, key))
	require.Contains(t, client.Say(t, "dial", server.at(7003), dir, other), "*net.TCPConn")
	require.Contains(t, client.Say(t, "dial", server.at(7003), dir, "user0"), "*net.TCPConn", "the dialer has no key")
	require.Contains(t, client.Say(t, "dial", server.at(7003), dir, key), "*rnet.Conn")
	require.Contains(t, client.Say(t, "dial", server.at(7002), dir, "user0", key), "*rnet.Conn", "the listener needs no key")
	require.Contains(t, client.Say(t, "dial", server.at(7002), dir, key), "*net.TCPConn", "the listener has no key")
	require.Equal(t, "listens: <nil>", server.Say(t, "listen", ":7004", dir, "group1000"))
	require.Contains(t, client.Say(t, "dial", server.at(7004), dir, "group0"), "*rnet.Conn")
	require.Contains(t, client.Say(t, "dial", server.at(7004), dir, "group1"), "*net.TCPConn", "the listener is not in it")
	require.Equal(t, "listens: <nil>", client.Say(t, "listen", ":7001", dir, "user0"))
	require.Contains(t, server.Say(t, "dial", client.at(7001), dir, "user1000", "user999"), "*rnet.Conn")
	require.Contains(t, server.Say(t, "dial", client.at(7001), dir), "*net.TCPConn")
}

// newCgroup makes a control group, which ends with the test.
func newCgroup(t *testing.T, name string) *cgroup.Group {
	t.Helper()
	c, err := cgroup.New(name)
	skip.Because(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func inCgroup(c *cgroup.Group, attr syscall.SysProcAttr) *syscall.SysProcAttr {
	attr.UseCgroupFD, attr.CgroupFD = true, int(c.Dir.Fd())
	return &attr
}

func nameOfCgroup(c *cgroup.Group) string { return "cgroup" + strconv.FormatUint(c.ID, 10) }

func TestContainersOfControlGroupsMeetIfBothSaySo(t *testing.T) {
	if !cgroup.KernelTells() {
		t.Skip("it needs Linux 6.13")
	}
	one, other, sibling := newCgroup(t, "one"), newCgroup(t, "other"), newCgroup(t, "sibling")
	below, err := other.Below("below")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, below.Close()) })
	server, client := twoProcesses(t, inCgroup(one, syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}),
		inCgroup(other, syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}))
	dir := meetingPlace(t)
	take := func(c *cgroup.Group) { require.NoError(t, c.Take(client.Cmd.Process.Pid)) }
	ofOne, ofOther := nameOfCgroup(one), nameOfCgroup(other)
	require.Equal(t, "listens: <nil>", server.Say(t, "listen", ":7001", dir, nameOfCgroup(sibling), ofOther))
	dial := func(rules ...string) string {
		return client.Say(t, append([]string{"dial", server.at(7001), dir}, rules...)...)
	}
	require.Contains(t, dial(), "*net.TCPConn", "the dialer has not named the listener")
	require.Contains(t, dial(ofOther), "*net.TCPConn", "the dialer has named another group")
	require.Contains(t, dial(ofOne), "*rnet.Conn")
	require.Contains(t, dial("user0"), "*rnet.Conn", "each has its own rule")
	// A dial with other rules shares no session.
	take(below)
	require.Contains(t, dial(ofOne, "user999"), "*net.TCPConn", "it is in a group below")
	take(sibling)
	require.Equal(t, "listens: <nil>", client.Say(t, "listen", ":7001", dir, ofOne))
	require.Contains(t, server.Say(t, "dial", client.at(7001), dir, ofOther), "*net.TCPConn", "it has left the group")
	require.Contains(t, server.Say(t, "dial", client.at(7001), dir, nameOfCgroup(sibling)), "*rnet.Conn")
	require.Equal(t, "listens: <nil>", server.Say(t, "listen", ":7002", dir, ofOther))
	require.Contains(t, client.Say(t, "dial", server.at(7002), dir, ofOne), "*net.TCPConn", "it is in a sibling")
}

// What cannot be known is said.
func TestContainersThatSeeNoControlGroupSaySo(t *testing.T) {
	server, client := twoProcesses(t, &syscall.SysProcAttr{Cloneflags: separate}, &syscall.SysProcAttr{
		Cloneflags: separate, Credential: &syscall.Credential{Uid: 1000, Gid: 1000},
	})
	dir := meetingPlace(t)
	require.Equal(t, "listens: <nil>", server.Say(t, "listen", ":7001", dir, "user1000"))
	said := client.Say(t, "dial", server.at(7001), dir, "cgroup1")
	require.Contains(t, said, "*net.TCPConn")
	require.Contains(t, said, "does not tell the control group")
	require.Contains(t, said, "use a key")
}

func freePort(t *testing.T) int {
	addr, err := freeport.Address("127.0.0.1")
	require.NoError(t, err)
	return int(netip.MustParseAddrPort(addr).Port())
}

// The table of docs/containers.md is what is found here.
func TestWhoReachesWhom(t *testing.T) {
	var groups []uint32 // more than fit where they are expected
	for gid := uint32(1901); gid <= 2000; gid++ {
		groups = append(groups, gid)
	}
	attr := func(flags uintptr, uid uint32) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Cloneflags: flags, Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
	}
	// Root of a user namespace, who is another user outside.
	mapped := func(outside int) *syscall.SysProcAttr {
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: outside, Size: 1}}
		return &syscall.SysProcAttr{
			Cloneflags: separate | unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
			Credential: &syscall.Credential{NoSetGroups: true},
		}
	}
	meshed := func(outside int) *syscall.SysProcAttr {
		attr := mapped(outside)
		attr.Cloneflags = unix.CLONE_NEWNET | unix.CLONE_NEWUSER
		return attr
	}
	alone := func(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
		attr.Cloneflags = unix.CLONE_NEWUSER
		return attr
	}
	table := "| | nothing | a directory | each names the other's user | each names a group of the other | both have a key | each names the other's control group |\n|---|---|---|---|---|---|---|\n"
	const key = "key0123456789abcdef"
	ofServer, ofClient := newCgroup(t, "server"), newCgroup(t, "client")
	for _, row := range []struct {
		what           string
		server, client *syscall.SysProcAttr
		owner          int // of the directory
	}{
		{"one network namespace, one user", attr(0, 1000), attr(0, 1000), 0},
		{"one network namespace, one user, other PID, IPC, UTS and mount namespaces", attr(0, 1000), attr(separate&^unix.CLONE_NEWNET, 1000), 0},
		{"one network namespace, one user, another PID namespace", attr(0, 1000), attr(unix.CLONE_NEWPID, 1000), 0},
		{"one network namespace, one user, another mount namespace", attr(0, 1000), attr(unix.CLONE_NEWNS, 1000), 0},
		{"one network namespace, one user, another user namespace", attr(0, 1000), alone(mapped(1000)), 0},
		{"one network namespace, two users, by a loopback address", attr(0, 1000), attr(0, 1001), 0},
		{"one network namespace, two users, by an address of a network", attr(unix.CLONE_NEWNET, 1000), attr(0, 1001), 0},
		{"two network namespaces, one user", attr(unix.CLONE_NEWNET, 1000), attr(unix.CLONE_NEWNET, 1000), 0},
		{"two network namespaces, two users", attr(unix.CLONE_NEWNET, 1000), attr(unix.CLONE_NEWNET, 1001), 0},
		{"two network and user namespaces, two users", meshed(1000), meshed(1001), 0},
		{"two network, PID, IPC, UTS and mount namespaces, one user", attr(separate, 1000), attr(separate, 1000), 0},
		{"the same, two users", attr(separate, 1000), attr(separate, 1001), 0},
		{"the same, and two user namespaces, one user, to whom the directory belongs", mapped(1000), mapped(1000), 1000},
		{"the same, the directory belongs to the host's root", mapped(1000), mapped(1000), 0},
		{"the same, two users", mapped(1000), mapped(1001), 1000},
	} {
		server, client := twoProcesses(t, inCgroup(ofServer, *row.server), inCgroup(ofClient, *row.client))
		inside := func(attr *syscall.SysProcAttr) string { return strconv.Itoa(int(attr.Credential.Uid)) }
		table += "| " + row.what
		for port, words := range [][2][]string{
			{{"none"}, {"none"}},
			{{"DIR"}, {"DIR"}},
			{{"DIR", "user" + inside(row.client)}, {"DIR", "user" + inside(row.server)}},
			{{"DIR", "group2000"}, {"DIR", "group2000"}},
			{{"DIR", key}, {"DIR", key}},
			{{"DIR", nameOfCgroup(ofClient)}, {"DIR", nameOfCgroup(ofServer)}},
		} {
			dir := meetingPlace(t)
			require.NoError(t, os.Chown(dir, row.owner, row.owner))
			for _, list := range words {
				if list[0] == "DIR" {
					list[0] = dir
				}
			}
			at := server.at(7001 + port)
			if server.ip == "127.0.0.1" { // that of this test
				at = server.at(freePort(t))
			}
			require.Equal(t, "listens: <nil>", server.Say(t, append([]string{"listen", at}, words[0]...)...))
			dial := append([]string{"dial", at}, words[1]...)
			said := client.Say(t, dial...)
			for range 10 { // a machine that is too busy for a session says nothing of who is let in
				if !strings.Contains(said, " handshake-timeout: ") && !strings.Contains(said, "does not answer") {
					break
				}
				t.Log(row.what, dial, said)
				said = client.Say(t, dial...)
			}
			switch {
			case strings.HasPrefix(said, "*rnet.Conn"):
				table += " | shared memory"
			case strings.HasPrefix(said, "*net.TCPConn"):
				table += " | TCP"
			default:
				t.Fatal(row.what, said)
			}
		}
		table += " |\n"
		server.Stop()
		client.Stop()
	}
	t.Log("\n" + table)
	page, err := os.ReadFile("../docs/containers.md")
	require.NoError(t, err)
	text := string(page)
	if !cgroup.KernelTells() { // then the last column says nothing
		text, table = withoutLastColumn(text), withoutLastColumn(table)
	}
	require.Contains(t, text, table)
}

func withoutLastColumn(tables string) string {
	return regexp.MustCompile(`(?m)\|[^|\n]*\|$`).ReplaceAllString(tables, "|")
}
