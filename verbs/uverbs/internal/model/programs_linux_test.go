//go:build amd64 || arm64

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/modeltest"
)

func TestMain(m *testing.M) {
	frame.Main()
	os.Exit(m.Run())
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
		{"Ethernet", mlx5.Config{Link: fabric.Ethernet}, false, []string{"port_lid: 0", "link_layer: Ethernet",
			"GID[ 1]: fe80::202:c9ff:fec0:0, RoCE v2", "GID[ 3]: ::ffff:127.0.0.1, RoCE v2"}},
		{"without atomics", mlx5.Config{NoAtomics: true}, false, []string{"atomic_cap: ATOMIC_NONE (0)"}},
		{"Ethernet by write", mlx5.Config{Link: fabric.Ethernet, StaticUARs: true}, true, []string{"link_layer: Ethernet",
			"GID[ 3]: ::ffff:127.0.0.1, RoCE v2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := modeltest.NewTrial(t)
			r.WriteOnly, r.Device = test.writeOnly, test.config
			var output bytes.Buffer
			require.NoError(t, r.Start(t, &output, "ibv_devinfo", "-v").Wait(), "%s", &output)
			for _, line := range append(test.lines, "hca_id: mlx5_0", "fw_ver: 16.35.1000", "vendor_part_id: 4119", "state: PORT_ACTIVE (4)", "maximum available device memory: 131072Bytes") {
				require.Contains(t, strings.Join(strings.Fields(output.String()), " "), line)
			}
		})
	}
}

func TestDevicesAreListed(t *testing.T) {
	var output bytes.Buffer
	require.NoError(t, modeltest.NewTrial(t).Start(t, &output, "ibv_devices").Wait(), "%s", &output)
	require.Regexp(t, `(?m)^\s*mlx5_0\s+0002c90300c00000$`, output.String())
}

// ibv_asyncwatch prints events until it is ended. It is told of the link's going and coming, and of
// the end of the device.
func TestAsyncwatchIsToldOfEvents(t *testing.T) {
	r := modeltest.NewTrial(t)
	out, theirs, err := os.Pipe()
	require.NoError(t, err)
	defer out.Close()
	defer theirs.Close()
	watcher := r.Start(t, theirs, "ibv_asyncwatch")
	defer func() {
		watcher.Kill()
		_ = watcher.Wait() // that it was ended
	}()
	require.NoError(t, out.SetReadDeadline(time.Now().Add(time.Minute)))
	lines := bufio.NewScanner(out)
	says := func(want string) {
		require.True(t, lines.Scan(), "%q: %v", want, lines.Err())
		require.Contains(t, lines.Text(), want)
	}
	says("Warning: couldn't open config directory") // which IBV_DRIVERS is for
	says("mlx5_0: async event FD")
	r.Devices[0].SetLink(false)
	says("IBV_EVENT_PORT_ERR")
	r.Devices[0].SetLink(true)
	says("IBV_EVENT_PORT_ACTIVE")
	r.Devices[0].Remove()
	says("IBV_EVENT_DEVICE_FATAL")
}

// The programs of ibverbs-utils, which compare what they receive (-c).
func TestPingpong(t *testing.T) {
	for _, args := range []string{
		"ibv_rc_pingpong -c -e", "ibv_rc_pingpong -c -t -n 200", "ibv_rc_pingpong -c -o -n 200", "ibv_rc_pingpong -c -o -P -n 200",
		"ibv_rc_pingpong -c -e -s 1 -n 200", "ibv_rc_pingpong -c -e -s 300000 -n 50",
		"ibv_rc_pingpong -c -j", "ibv_rc_pingpong -c -e -j -s 5000 -n 200", // between memory of the devices
		"ibv_uc_pingpong -c -e", "ibv_uc_pingpong -c -n 200",
		"ibv_ud_pingpong -c -e", "ibv_ud_pingpong -c -n 200",
		"ibv_srq_pingpong -c -e", "ibv_srq_pingpong -c -n 200",
	} {
		t.Run(args, func(t *testing.T) {
			server, client := modeltest.NewTrial(t).Pair(t, strings.Fields(args)...)
			for _, output := range []string{server, client} {
				require.Contains(t, output, " iters in ")
				require.NotContains(t, output, "invalid data")
			}
		})
	}
}

// Of RoCE, without BlueFlame, and with kernels that have no dynamic UARs.
func TestPingpongOfOtherDevices(t *testing.T) {
	for _, test := range []struct {
		args   string
		config mlx5.Config
	}{
		{"ibv_rc_pingpong -c -e -g 3", mlx5.Config{Link: fabric.Ethernet}},
		{"ibv_rc_pingpong -c -n 200 -g 0", mlx5.Config{Link: fabric.Ethernet}},
		{"ibv_uc_pingpong -c -e -g 1", mlx5.Config{Link: fabric.Ethernet}},
		{"ibv_ud_pingpong -c -e -g 3", mlx5.Config{Link: fabric.Ethernet}},
		{"ibv_ud_pingpong -c -n 200 -g 1", mlx5.Config{Link: fabric.Ethernet}},
		{"ibv_srq_pingpong -c -e -g 3", mlx5.Config{Link: fabric.Ethernet, StaticUARs: true}},
		{"ibv_rc_pingpong -c -e", mlx5.Config{StaticUARs: true}},
		{"ibv_rc_pingpong -c -e -j -g 3", mlx5.Config{Link: fabric.Ethernet, StaticUARs: true}},
		{"ibv_rc_pingpong -c -e", mlx5.Config{CQEVersion0: true}},
		{"ibv_srq_pingpong -c -e", mlx5.Config{CQEVersion0: true, StaticUARs: true}},
		{"ibv_rc_pingpong -c -e -g 3", mlx5.Config{Link: fabric.Ethernet, NoBlueFlame: true}},
		{"ibv_ud_pingpong -c -n 200", mlx5.Config{StaticUARs: true, NoBlueFlame: true}},
		{"ibv_ud_pingpong -c -e", mlx5.Config{StaticUARs: true}},
	} {
		t.Run(fmt.Sprintf("%s %+v", test.args, test.config), func(t *testing.T) {
			r := modeltest.NewTrial(t)
			r.Device = test.config
			server, client := r.Pair(t, strings.Fields(test.args)...)
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
		for _, config := range []mlx5.Config{{}, {Link: fabric.Ethernet}, {Link: fabric.Ethernet, StaticUARs: true}} {
			t.Run(fmt.Sprintf("%s %+v", test.client, config), func(t *testing.T) {
				r := modeltest.NewTrial(t)
				r.Device = config
				out := r.Connected(t, test.server, test.client)
				require.Contains(t, out, test.says)
			})
		}
	}
}

// mckey of librdmacm joins a multicast group. Both wait for three seconds then, so that
// switches learn of it.
func TestMulticastGroupOfTheConnectionManager(t *testing.T) {
	for _, test := range []struct {
		link  fabric.Link
		group string
		gid   string
	}{
		{fabric.InfiniBand, "239.1.2.3", "ff12:4001:ffff::f01:203 mlid 0xc000"},
		{fabric.Ethernet, "239.1.2.3", "::ffff:239.1.2.3 mlid 0x0"},
	} {
		t.Run(fmt.Sprintf("%v %s", test.link, test.group), func(t *testing.T) {
			t.Parallel()
			r := modeltest.NewTrial(t)
			r.Device = mlx5.Config{Link: test.link}
			var outputs [2]bytes.Buffer
			receiver := r.Start(t, &outputs[0], "mckey", "-m", test.group)
			require.Eventually(t, func() bool { return r.Fabric.Members() == 1 }, 30*time.Second, time.Millisecond, "nobody joins: %s", &outputs[0])
			sender := r.Start(t, &outputs[1], "mckey", "-m", test.group, "-s")
			require.NoError(t, sender.Wait(), "%s", &outputs[1])
			require.NoError(t, receiver.Wait(), "%s", &outputs[0])
			require.Empty(t, r.Fabric.Violations())
			for _, output := range outputs {
				require.Contains(t, output.String(), "joined dgid: "+test.gid)
				require.Contains(t, output.String(), "data transfers complete")
				require.Contains(t, output.String(), "return status 0")
			}
		})
	}
}

// Devices may be late, and QPs overtake each other.
func TestProgramsOnHostileDevices(t *testing.T) {
	for seed, args := range []string{
		"ibv_rc_pingpong -c -n 200", "ibv_rc_pingpong -c -e", "ibv_uc_pingpong -c -e", "ibv_srq_pingpong -c -e",
		"ib_send_bw -e -n 200", "ib_send_bw -n 200", "ib_write_bw -q 4 -n 200", "ib_read_bw -e -n 200", "ib_atomic_bw -n 200",
	} {
		t.Run(args, func(t *testing.T) {
			trial := modeltest.NewTrial(t, uint64(seed+1))
			_, client := trial.Pair(t, strings.Fields(args)...)
			require.NotContains(t, client, "invalid data")
			require.GreaterOrEqual(t, trial.Fabric.Stats().Requests, 200)
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
			r := modeltest.NewTrial(t, uint64(seed+1))
			r.Device = mlx5.Config{Link: fabric.Ethernet}
			r.Connected(t, test[0], test[1])
		})
	}
}

// pingpong starts a pair that waits with events, and returns when it has exchanged messages.
func pingpong(t *testing.T, r *modeltest.Trial, iterations string) (server, client *frame.Program, output *[2]bytes.Buffer) {
	t.Helper()
	output = new([2]bytes.Buffer)
	args := []string{"ibv_rc_pingpong", "-c", "-e", "-n", iterations, "-p", modeltest.FreePort(t)}
	server = r.Start(t, &output[0], args...)
	modeltest.WaitForListener(t, args[len(args)-1])
	client = r.Start(t, &output[1], append(args, "127.0.0.1")...)
	require.Eventually(t, func() bool { return r.Fabric.Stats().Requests > 100 }, 30*time.Second, time.Millisecond, "messages")
	return server, client, output
}

// A link that is away for less than the retries last loses nothing.
func TestPingpongWhileTheLinkComesAndGoes(t *testing.T) {
	r := modeltest.NewTrial(t)
	server, client, output := pingpong(t, r, "2000")
	for n := range 5 {
		r.Devices[n%2].SetLink(false)
		time.Sleep(20 * time.Millisecond)
		r.Devices[n%2].SetLink(true)
	}
	require.NoError(t, client.Wait(), "%s", &output[1])
	require.NoError(t, server.Wait(), "%s", &output[0])
	require.Contains(t, output[1].String(), "2000 iters in ")
	require.NotContains(t, output[1].String(), "invalid data")
	require.Empty(t, r.Fabric.Violations())
}

// The program is told. Its peer may wait for a message that nobody will send.
func TestPingpongEndsWhenADeviceIsRemoved(t *testing.T) {
	r := modeltest.NewTrial(t)
	server, client, output := pingpong(t, r, "1000000")
	defer func() {
		client.Kill()
		_ = client.Wait() // that it was ended
	}()
	r.Devices[0].Remove()
	require.Error(t, server.Wait())
	require.Contains(t, output[0].String(), "Failed to get cq_event")
	require.Empty(t, r.Fabric.Violations())
}

// The provider over the C library is told too. What must happen then is in the test of package
// ibverbs, a program of another module.
func TestRemovalOverTheCLibrary(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: builds a program")
	}
	const test = "TestRemovalOfTheDeviceEndsEverything"
	r := modeltest.NewTrial(t)
	program, wanted := filepath.Join(t.TempDir(), "ibverbs.test"), filepath.Join(t.TempDir(), "wanted")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, ".")
	build.Dir = "../../../ibverbs"
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Setenv("RAMJET_TEST_REMOVAL", wanted)
	for _, link := range []fabric.Link{fabric.InfiniBand, fabric.Ethernet} {
		require.NoError(t, os.RemoveAll(wanted))
		r.Device = mlx5.Config{Link: link}
		var output bytes.Buffer
		p := r.Start(t, &output, program, "-test.v", "-test.run=^"+test+"$")
		device, ended := r.Devices[len(r.Devices)-1], make(chan struct{})
		var removal sync.WaitGroup
		removal.Go(func() { // ends with the program
			for tick := time.NewTicker(time.Millisecond); ; {
				select {
				case <-ended:
					return
				case <-tick.C:
				}
				if _, err := os.Stat(wanted); err == nil {
					device.Remove()
					return
				}
			}
		})
		err := p.Wait()
		close(ended)
		removal.Wait()
		require.NoError(t, err, "%s", &output)
		require.Contains(t, output.String(), "--- PASS: "+test+" ")
	}
	require.Empty(t, r.Fabric.Violations())
}

func TestPerftest(t *testing.T) {
	for _, test := range []struct {
		args string
		qps  int
	}{
		{"ib_send_lat", 1}, {"ib_send_lat -e", 1}, {"ib_send_lat -c UC", 1}, {"ib_send_lat -c UD", 1},
		{"ib_send_lat -I 128 -s 100", 1}, {"ib_send_lat --use-srq", 1}, {"ib_send_lat --use-srq -e", 1},
		{"ib_send_bw", 1}, {"ib_send_bw -e", 1}, {"ib_send_bw -b", 1}, {"ib_send_bw -l 8", 1}, {"ib_send_bw -c UC", 1}, {"ib_send_bw -c UD", 1},
		{"ib_send_bw -r 64 --use-srq", 1}, {"ib_send_bw -r 64 --use-srq -e", 1}, {"ib_send_bw -r 64 --use-srq -q 4", 4},
		{"ib_write_lat", 1}, {"ib_write_lat -c UC", 1}, {"ib_write_lat -I 64 -s 60", 1},
		{"ib_write_bw", 1}, {"ib_write_bw -q 4", 4}, {"ib_write_bw -l 8", 1}, {"ib_write_bw -b", 1}, {"ib_write_bw -c UC", 1},
		{"ib_write_bw -I 100 -s 100", 1}, {"ib_write_bw -I 64 -s 64 -l 4", 1},
		{"ib_read_lat", 1}, {"ib_read_lat -e", 1}, {"ib_read_bw", 1}, {"ib_read_bw -e", 1}, {"ib_read_bw -l 8", 1},
		{"ib_atomic_lat", 1}, {"ib_atomic_lat -e", 1}, {"ib_atomic_bw", 1}, {"ib_atomic_bw -e", 1}, {"ib_atomic_bw -l 8", 1},
		{"ib_atomic_bw -A CMP_AND_SWAP", 1},
	} {
		t.Run(test.args, func(t *testing.T) {
			measure(t, modeltest.NewTrial(t), test.args, test.qps)
		})
	}
}

// Of RoCE, and with kernels that have no dynamic UARs.
func TestPerftestOfOtherDevices(t *testing.T) {
	for _, config := range []mlx5.Config{{Link: fabric.Ethernet}, {StaticUARs: true}, {Link: fabric.Ethernet, StaticUARs: true}} {
		for _, args := range []string{
			"ib_send_lat -e", "ib_send_lat -c UD -e", "ib_send_bw -c UC", "ib_send_bw -r 64 --use-srq -e", "ib_write_bw -c UC", "ib_write_bw -q 4",
			"ib_read_bw -e", "ib_atomic_bw",
		} {
			t.Run(fmt.Sprintf("%s %+v", args, config), func(t *testing.T) {
				trial := modeltest.NewTrial(t)
				trial.Device = config
				qps := 1
				if strings.Contains(args, "-q 4") {
					qps = 4
				}
				measure(t, trial, args, qps)
			})
		}
	}
}

// measure runs a program of perftest with so many QPs.
func measure(t *testing.T, trial *modeltest.Trial, args string, qps int) {
	t.Helper()
	iterations := 200
	if strings.Contains(args, "_lat") && !strings.Contains(args, "-e") {
		iterations = 50 // both poll, and take turns with the model
	}
	_, client := trial.Pair(t, append(strings.Fields(args), "-n", fmt.Sprint(iterations))...)
	// Bandwidth is reported for all QPs together.
	require.Regexp(t, fmt.Sprintf(`\n \d+ +%d `, iterations*qps), client, "there is no line with the result")
	require.GreaterOrEqual(t, trial.Fabric.Stats().Requests, iterations*qps)
}
