//go:build amd64 || arm64

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
)

func TestMain(m *testing.M) {
	frame.Main()
	os.Exit(m.Run())
}

// skip skips the test if there is a reason, or fails it where nothing may be left out.
func skip(t *testing.T, reason error) {
	t.Helper()
	switch {
	case reason == nil:
	case os.Getenv("RAMJET_TEST_ALL") != "":
		t.Fatalf("RAMJET_TEST_ALL allows nothing to be left out: %v", reason)
	default:
		t.Skip("left out:", reason)
	}
}

// packages are what the programs need, from Debian, unpacked and not installed.
var packages = []string{"libibverbs1", "ibverbs-providers", "ibverbs-utils", "perftest", "librdmacm1", "rdmacm-utils",
	"libnl-3-200", "libnl-route-3-200", "libibumad3", "libpci3"}

// rootVariable names the directory to which the packages were unpacked. If it is empty, they
// are downloaded first.
const rootVariable = "RAMJET_MODEL_ROOT"

var unpacked = sync.OnceValues(func() (root string, err error) {
	root = os.Getenv(rootVariable)
	if _, err := os.Stat(filepath.Join(root, "usr/bin/rping")); err == nil {
		return root, nil
	}
	return root, unpack(root)
})

// programs returns the directory of the C programs, and the environment that they need.
func programs(t *testing.T) (bin string, env []string) {
	t.Helper()
	if os.Getenv(rootVariable) == "" {
		t.Skipf("%s is not set: a directory for programs of Debian", rootVariable)
	}
	root, err := unpacked()
	skip(t, err)
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	libraries := filepath.Join(root, "usr/lib", triplet)
	return filepath.Join(root, "usr/bin"), []string{
		"LD_LIBRARY_PATH=" + libraries + ":" + filepath.Join(root, "lib", triplet),
		"IBV_DRIVERS=" + filepath.Join(libraries, "libibverbs/libmlx5"),
	}
}

func unpack(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	run := func(name string, args ...string) error {
		c := exec.CommandContext(ctx, name, args...)
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
		return nil
	}
	if err := run("apt-get", append([]string{"-qq", "-o", "Acquire::Retries=3", "download"}, packages...)...); err != nil {
		return fmt.Errorf("the programs of Debian cannot be had (is apt's list current? apt-get update): %w", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	for _, file := range files {
		err = errors.Join(err, run("dpkg", "-x", file, dir))
	}
	return err
}

// A trial is a fabric with hosts on which programs run.
type trial struct {
	fabric    *mlx5.Fabric
	bin       string
	env       []string
	writeOnly bool
	config    mlx5.Config
	devices   []*mlx5.Device // of the programs
}

// newTrial returns one of hostile devices if there is a seed.
func newTrial(t *testing.T, seed ...uint64) *trial {
	t.Helper()
	bin, env := programs(t)
	r := &trial{fabric: mlx5.NewFabric(), bin: bin, env: env}
	if len(seed) > 0 {
		r.fabric.Hostile = rand.New(rand.NewPCG(seed[0], 0))
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.fabric.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return r
}

// start runs a program on a host of its own.
func (r *trial) start(t *testing.T, output *bytes.Buffer, args ...string) *frame.Program {
	t.Helper()
	device := r.fabric.NewDevice(r.config)
	r.devices = append(r.devices, device)
	host := device.Host()
	host.WriteOnly = r.writeOnly
	p, err := host.Start(append([]string{filepath.Join(r.bin, args[0])}, args[1:]...), r.env, output, output)
	require.NoError(t, err, "%s", output)
	watch := time.AfterFunc(time.Minute, p.Kill)
	t.Cleanup(func() { watch.Stop() })
	return p
}

// pair runs a program as server and as client, and returns what they say.
func (r *trial) pair(t *testing.T, args ...string) (server, client string) {
	t.Helper()
	port := freePort(t)
	args = append(args, "-p", port)
	var outputs [2]bytes.Buffer
	s := r.start(t, &outputs[0], args...)
	waitForListener(t, port)
	c := r.start(t, &outputs[1], append(args, "127.0.0.1")...)
	clientErr, serverErr := c.Wait(), s.Wait()
	require.NoError(t, clientErr, "client of %v: %s", args, &outputs[1])
	require.NoError(t, serverErr, "server of %v: %s", args, &outputs[0])
	require.Empty(t, r.fabric.Violations())
	return outputs[0].String(), outputs[1].String()
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

// waitForListener waits until somebody listens on a port, without connecting to it: the
// programs take one connection.
func waitForListener(t *testing.T, port string) {
	t.Helper()
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	const listening = "0A"
	require.Eventually(t, func() bool {
		for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			b, _ := os.ReadFile(table)
			for line := range strings.Lines(string(b)) {
				f := strings.Fields(line)
				if len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) && f[3] == listening {
					return true
				}
			}
		}
		return false
	}, 30*time.Second, 5*time.Millisecond, "nobody listens on port %s", port)
}

func TestDevinfoDescribesTheDevice(t *testing.T) {
	for _, test := range []struct {
		name      string
		config    mlx5.Config
		writeOnly bool
		lines     []string
	}{
		{"InfiniBand", mlx5.Config{}, false, []string{"port_lid: 7", "link_layer: InfiniBand", "GID[ 0]: fe80:0000:0000:0000:0002:c903:00c0:0000"}},
		{"by write", mlx5.Config{StaticUARs: true}, true, []string{"port_lid: 7", "link_layer: InfiniBand"}},
		{"Ethernet", mlx5.Config{Link: mlx5.Ethernet}, false, []string{"port_lid: 0", "link_layer: Ethernet",
			"GID[ 1]: fe80::202:c9ff:fec0:0, RoCE v2", "GID[ 3]: ::ffff:127.0.0.1, RoCE v2"}},
		{"Ethernet by write", mlx5.Config{Link: mlx5.Ethernet, StaticUARs: true}, true, []string{"link_layer: Ethernet",
			"GID[ 3]: ::ffff:127.0.0.1, RoCE v2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newTrial(t)
			r.writeOnly, r.config = test.writeOnly, test.config
			var output bytes.Buffer
			require.NoError(t, r.start(t, &output, "ibv_devinfo", "-v").Wait(), "%s", &output)
			for _, line := range append(test.lines, "hca_id: mlx5_0", "fw_ver: 16.35.1000", "vendor_part_id: 4119", "state: PORT_ACTIVE (4)") {
				require.Contains(t, strings.Join(strings.Fields(output.String()), " "), line)
			}
		})
	}
}

// The programs of ibverbs-utils, which compare what they receive (-c).
func TestPingpong(t *testing.T) {
	for _, args := range []string{
		"ibv_rc_pingpong -c -e", "ibv_rc_pingpong -c", "ibv_rc_pingpong -c -e -s 1 -n 200", "ibv_rc_pingpong -c -e -s 300000 -n 50",
		"ibv_uc_pingpong -c -e", "ibv_uc_pingpong -c",
		"ibv_ud_pingpong -c -e", "ibv_ud_pingpong -c",
		"ibv_srq_pingpong -c -e", "ibv_srq_pingpong -c",
	} {
		t.Run(args, func(t *testing.T) {
			server, client := newTrial(t).pair(t, strings.Fields(args)...)
			for _, output := range []string{server, client} {
				require.Contains(t, output, " iters in ")
				require.NotContains(t, output, "invalid data")
			}
		})
	}
}

// Of RoCE, and with kernels that have no dynamic UARs.
func TestPingpongOfOtherDevices(t *testing.T) {
	for _, test := range []struct {
		args   string
		config mlx5.Config
	}{
		{"ibv_rc_pingpong -c -e -g 3", mlx5.Config{Link: mlx5.Ethernet}},
		{"ibv_rc_pingpong -c -g 0", mlx5.Config{Link: mlx5.Ethernet}},
		{"ibv_uc_pingpong -c -e -g 1", mlx5.Config{Link: mlx5.Ethernet}},
		{"ibv_ud_pingpong -c -e -g 3", mlx5.Config{Link: mlx5.Ethernet}},
		{"ibv_ud_pingpong -c -g 1", mlx5.Config{Link: mlx5.Ethernet}},
		{"ibv_srq_pingpong -c -e -g 3", mlx5.Config{Link: mlx5.Ethernet, StaticUARs: true}},
		{"ibv_rc_pingpong -c -e", mlx5.Config{StaticUARs: true}},
		{"ibv_ud_pingpong -c -e", mlx5.Config{StaticUARs: true}},
	} {
		t.Run(fmt.Sprintf("%s %+v", test.args, test.config), func(t *testing.T) {
			r := newTrial(t)
			r.config = test.config
			server, client := r.pair(t, strings.Fields(test.args)...)
			for _, output := range []string{server, client} {
				require.Contains(t, output, " iters in ")
				require.NotContains(t, output, "invalid data")
			}
		})
	}
}

// The programs of librdmacm, which find each other by the connection manager.
func TestConnectionManager(t *testing.T) {
	for _, test := range []struct {
		server, client string
		says           string // both, or the client
	}{
		{"rping -s -a 127.0.0.1 -C 10 -V", "rping -c -a 127.0.0.1 -C 10 -V -v", "ping data: rdma-ping-9: "},
		{"rstream -S 4096 -C 100 -T v", "rstream -s 127.0.0.1 -S 4096 -C 100 -T v", "custom"},
		{"rstream -S 65536 -C 20 -I 4 -T b", "rstream -s 127.0.0.1 -S 65536 -C 20 -I 4 -T b", "custom"},
		{"ucmatose -c 3", "ucmatose -s 127.0.0.1 -c 3", "return status 0"},
		{"udaddy -c 3", "udaddy -s 127.0.0.1 -c 3", "return status 0"},
	} {
		for _, config := range []mlx5.Config{{}, {Link: mlx5.Ethernet}, {Link: mlx5.Ethernet, StaticUARs: true}} {
			t.Run(fmt.Sprintf("%s %+v", test.client, config), func(t *testing.T) {
				r := newTrial(t)
				r.config = config
				out := r.connected(t, test.server, test.client)
				require.Contains(t, out, test.says)
			})
		}
	}
}

// connected runs a server, and when it listens a client, and returns what that says.
func (r *trial) connected(t *testing.T, server, client string) (output string) {
	t.Helper()
	var outputs [2]bytes.Buffer
	s := r.start(t, &outputs[0], strings.Fields(server)...)
	require.Eventually(t, func() bool { return r.fabric.Listens() }, 30*time.Second, time.Millisecond, "nobody listens: %s", &outputs[0])
	c := r.start(t, &outputs[1], strings.Fields(client)...)
	clientErr, serverErr := c.Wait(), s.Wait()
	require.NoError(t, clientErr, "%s: %s", client, &outputs[1])
	require.NoError(t, serverErr, "%s: %s", server, &outputs[0])
	require.Empty(t, r.fabric.Violations())
	return outputs[1].String()
}

// Devices may be late, and QPs overtake each other.
func TestProgramsOnHostileDevices(t *testing.T) {
	for seed, args := range []string{
		"ibv_rc_pingpong -c", "ibv_rc_pingpong -c -e", "ibv_uc_pingpong -c -e", "ibv_srq_pingpong -c -e",
		"ib_send_bw -e -n 200", "ib_send_bw -n 200", "ib_write_bw -q 4 -n 200", "ib_read_bw -e -n 200", "ib_atomic_bw -n 200",
	} {
		t.Run(args, func(t *testing.T) {
			trial := newTrial(t, uint64(seed+1))
			_, client := trial.pair(t, strings.Fields(args)...)
			require.NotContains(t, client, "invalid data")
			require.GreaterOrEqual(t, trial.fabric.Stats().Requests, 200)
		})
	}
}

func TestConnectionManagerOnHostileDevices(t *testing.T) {
	for seed, test := range [][2]string{
		{"rping -s -a 127.0.0.1 -C 10 -V", "rping -c -a 127.0.0.1 -C 10 -V"},
		{"rstream -S 4096 -C 50 -T v", "rstream -s 127.0.0.1 -S 4096 -C 50 -T v"},
		{"ucmatose -c 3", "ucmatose -s 127.0.0.1 -c 3"},
	} {
		t.Run(test[1], func(t *testing.T) {
			r := newTrial(t, uint64(seed+1))
			r.config.Link = mlx5.Ethernet
			r.connected(t, test[0], test[1])
		})
	}
}

// pingpong starts a pair that waits with events, and returns when it has exchanged messages.
func (r *trial) pingpong(t *testing.T, iterations string) (server, client *frame.Program, output *[2]bytes.Buffer) {
	t.Helper()
	output = new([2]bytes.Buffer)
	args := []string{"ibv_rc_pingpong", "-c", "-e", "-n", iterations, "-p", freePort(t)}
	server = r.start(t, &output[0], args...)
	waitForListener(t, args[len(args)-1])
	client = r.start(t, &output[1], append(args, "127.0.0.1")...)
	require.Eventually(t, func() bool { return r.fabric.Stats().Requests > 100 }, 30*time.Second, time.Millisecond, "messages")
	return server, client, output
}

// A link that is away for less than the retries last loses nothing.
func TestPingpongWhileTheLinkComesAndGoes(t *testing.T) {
	r := newTrial(t)
	server, client, output := r.pingpong(t, "2000")
	for n := range 5 {
		r.devices[n%2].SetLink(false)
		time.Sleep(20 * time.Millisecond)
		r.devices[n%2].SetLink(true)
	}
	require.NoError(t, client.Wait(), "%s", &output[1])
	require.NoError(t, server.Wait(), "%s", &output[0])
	require.Contains(t, output[1].String(), "2000 iters in ")
	require.NotContains(t, output[1].String(), "invalid data")
	require.Empty(t, r.fabric.Violations())
}

// The program is told. Its peer may wait for a message that nobody will send.
func TestPingpongEndsWhenADeviceIsRemoved(t *testing.T) {
	r := newTrial(t)
	server, client, output := r.pingpong(t, "1000000")
	defer func() {
		client.Kill()
		_ = client.Wait() // that it was ended
	}()
	r.devices[0].Remove()
	require.Error(t, server.Wait())
	require.Contains(t, output[0].String(), "Failed to get cq_event")
	require.Empty(t, r.fabric.Violations())
}

func TestPerftest(t *testing.T) {
	const iterations = 200
	for _, test := range []struct {
		args string
		qps  int
	}{
		{"ib_send_lat", 1}, {"ib_send_lat -e", 1}, {"ib_send_lat -c UC", 1}, {"ib_send_lat -c UD", 1},
		{"ib_send_lat -I 128 -s 100", 1}, {"ib_send_lat --use-srq", 1},
		{"ib_send_bw", 1}, {"ib_send_bw -e", 1}, {"ib_send_bw -b", 1}, {"ib_send_bw -l 8", 1}, {"ib_send_bw -r 64 --use-srq", 1},
		{"ib_write_lat", 1}, {"ib_write_bw", 1}, {"ib_write_bw -q 4", 4}, {"ib_write_bw -l 8", 1}, {"ib_write_bw -b", 1},
		{"ib_read_lat", 1}, {"ib_read_lat -e", 1}, {"ib_read_bw", 1}, {"ib_read_bw -e", 1},
		{"ib_atomic_lat", 1}, {"ib_atomic_lat -e", 1}, {"ib_atomic_bw", 1}, {"ib_atomic_bw -A CMP_AND_SWAP", 1},
	} {
		t.Run(test.args, func(t *testing.T) {
			trial := newTrial(t)
			_, client := trial.pair(t, append(strings.Fields(test.args), "-n", fmt.Sprint(iterations))...)
			// Bandwidth is reported for all QPs together.
			require.Regexp(t, fmt.Sprintf(`\n \d+ +%d `, iterations*test.qps), client, "there is no line with the result")
			require.GreaterOrEqual(t, trial.fabric.Stats().Requests, iterations*test.qps)
		})
	}
}
