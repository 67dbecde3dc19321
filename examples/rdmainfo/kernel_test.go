package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/bits"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

// demanded returns the kernel's devices that must be there, and skips the test
// where none are.
func demanded(t *testing.T) []string {
	t.Helper()
	list := os.Getenv("RAMJET_DEVICES")
	if list == "" {
		t.Skip("needs RDMA devices: go build -o /tmp/guest ./verbs/guest && go test -exec /tmp/guest ./examples/rdmainfo")
	}
	return strings.Split(list, ",")
}

func TestKernelDevicesAreShown(t *testing.T) {
	want := demanded(t)
	r := decoded(t)
	byName := make(map[string]device)
	for _, d := range r.Devices {
		byName[d.Name] = d
	}
	for _, name := range want {
		d := byName[name]
		require.True(t, d.Usable, "%+v", d)
		require.Equal(t, uverbs.ProviderName, d.Provider)
		require.Len(t, d.Ports, 1)
		p := d.Ports[0]
		require.Equal(t, "ACTIVE", p.State)
		require.NotZero(t, p.ActiveMTU)
		require.NotEmpty(t, p.GIDs)
		require.NotNil(t, p.Traffic)
		require.Equal(t, "netdev "+p.Netdev, p.Traffic.BytesFrom)
	}
	t.Log(run(t))
}

func TestSelfTestOfKernelDevices(t *testing.T) {
	t.Setenv(experimentalVar, "") // the self test turns experimental drivers on by itself
	for _, name := range demanded(t) {
		t.Run(name, func(t *testing.T) {
			said := run(t, "-selftest", "-time", "3s", "-device", name)
			require.Contains(t, said, "ramjet self test of "+name+", port 1: PASSED\n")
			require.NotContains(t, said, "FAILED")
			t.Setenv(experimentalVar, "mlx5") // or it would not be opened to be described
			for _, d := range decoded(t).Devices {
				if d.Name == name {
					requireWhatItCan(t, said, d.Caps.Abilities)
				}
			}
			t.Log(said)
		})
	}
}

// requireWhatItCan requires that what a device can do was checked, and nothing else.
func requireWhatItCan(t *testing.T, said string, abilities []string) {
	t.Helper()
	for ability, check := range map[string]string{
		"srq": "SRQ: SEND of 0 bytes to 1 MiB", "xrc": "XRC: each message finds the SRQ that it names", "multicast": "UD: datagrams to a multicast group",
		"timestamps": "the device's time of completions", "moderate-cq": "events of a moderated CQ",
	} {
		want := "left out  "
		if slices.Contains(abilities, ability) {
			want = "passed    "
		}
		require.Contains(t, said, "\n  "+want+check, "it can: %v", abilities)
	}
}

// servedBy listens for kernel connections only, at the guest's address of a
// device. It skips the test if that device is not demanded.
func servedBy(t *testing.T, device string) net.Listener {
	t.Helper()
	addr := map[string]string{"rxe0": "10.0.0.1:0", "siw0": "10.0.2.1:0"}[device]
	if !slices.Contains(demanded(t), device) {
		t.Skipf("%s is not demanded", device)
	}
	ln, err := (&rnet.ListenConfig{Transport: rnet.RDMA}).Listen(t.Context(), "tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln
}

func TestDialToAKernelDeviceNamesIt(t *testing.T) {
	for _, device := range []string{"rxe0", "siw0"} {
		t.Run(device, func(t *testing.T) {
			addr := serve(t, servedBy(t, device), nil)
			a := decoded(t, patient, addr).Addresses[0]
			require.Equal(t, "rdma", a.Transport, "%+v", a)
			require.Equal(t, device, a.Device)
			kernel := a.Routes[len(a.Routes)-1]
			require.Equal(t, device, kernel.Device)
			require.EqualValues(t, 1, kernel.Port)
			text := run(t, patient, addr)
			require.Contains(t, text, " over "+device+"\n", "there is no other port")
			t.Log(text)
		})
	}
}

// TestKernelDevicesAreShownAsIbvDevinfoShowsThem compares with the C library's
// tool.
func TestKernelDevicesAreShownAsIbvDevinfoShowsThem(t *testing.T) {
	want := demanded(t)
	shown := 0
	for _, d := range decoded(t).Devices {
		if !slices.Contains(want, d.Name) {
			continue
		}
		shown++
		out, err := exec.Command("ibv_devinfo", "-v", "-d", d.Name).Output()
		require.NoError(t, err)
		theirs := make(map[string]string)
		for line := range strings.Lines(string(out)) {
			if key, value, ok := strings.Cut(line, ":\t"); ok {
				theirs[strings.TrimSpace(key)] = strings.TrimSpace(value)
			}
		}
		p := d.Ports[0]
		for key, ours := range map[string]string{
			"fw_ver":              d.Firmware,
			"node_guid":           d.NodeGUID,
			"sys_image_guid":      d.ImageGUID,
			"vendor_id":           fmt.Sprintf("%#04x", d.Maker.Vendor),
			"vendor_part_id":      fmt.Sprint(d.Maker.Part),
			"hw_ver":              fmt.Sprintf("%#x", d.Maker.Version),
			"phys_port_cnt":       fmt.Sprint(len(d.Ports)),
			"max_mtu":             fmt.Sprintf("%d (%d)", p.MaxMTU, bits.Len(uint(p.MaxMTU))-8),
			"active_mtu":          fmt.Sprintf("%d (%d)", p.ActiveMTU, bits.Len(uint(p.ActiveMTU))-8),
			"port_lid":            fmt.Sprint(p.LID),
			"sm_lid":              fmt.Sprint(p.SMLID),
			"port_lmc":            fmt.Sprintf("%#02x", p.LMC),
			"port_cap_flags":      fmt.Sprintf("%#08x", p.PortCaps),
			"link_layer":          p.LinkLayer,
			"max_msg_sz":          fmt.Sprintf("%#x", p.MaxMsg),
			"gid_tbl_len":         fmt.Sprint(p.GIDTable),
			"pkey_tbl_len":        fmt.Sprint(p.PKeyTable),
			"max_cq":              fmt.Sprint(d.Caps.MaxCQ),
			"max_pd":              fmt.Sprint(d.Caps.MaxPD),
			"max_qp_rd_atom":      fmt.Sprint(d.Caps.ReadsIn),
			"max_qp_init_rd_atom": fmt.Sprint(d.Caps.ReadDepth),
			"local_ca_ack_delay":  fmt.Sprint(d.Caps.AckDelay),
			"device_cap_flags_ex": fmt.Sprintf("%#X", d.Caps.KernelCaps),
		} {
			require.Equal(t, strings.ToLower(theirs[key]), strings.ToLower(ours), "%s of %s", key, d.Name)
		}
		require.Equal(t, map[string]string{"rxe0": "CA", "siw0": "RNIC"}[d.Name], d.NodeType)
	}
	require.Equal(t, len(want), shown)
}

// TestWatchShowsTheTrafficOfKernelDevices takes rxe, which counts its packets.
// Those of siw to its own host go over the loopback interface and not its own.
func TestWatchShowsTheTrafficOfKernelDevices(t *testing.T) {
	ln := servedBy(t, "rxe0")
	go func() {
		c, err := ln.Accept() // ends with the client's dial, or Close of ln
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(io.Discard, c) // ends with the client
	}()
	dialer := rnet.Dialer{Transport: rnet.RDMA, HeadStart: time.Minute} // TCP never comes into it
	conn, err := dialer.DialContext(t.Context(), "tcp", ln.Addr().String())
	require.NoError(t, err)
	require.IsType(t, (*rnet.Conn)(nil), conn)
	go func() {
		data := make([]byte, 1<<16)
		for {
			if _, err := conn.Write(data); err != nil { // ends with Close
				return
			}
		}
	}()
	defer conn.Close()
	lines := bufio.NewScanner(strings.NewReader(run(t, "-json", "-watch", "-every", "500ms", "-n", "4")))
	var most float64
	for lines.Scan() {
		var s sample
		require.NoError(t, json.Unmarshal(lines.Bytes(), &s))
		if s.Device == "rxe0" {
			most = max(most, s.TxPackets)
		}
	}
	require.NotZero(t, most)
}
