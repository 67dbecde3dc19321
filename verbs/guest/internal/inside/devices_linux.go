package inside

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/wire"
)

// network is what `ip -b` gets in a guest of its own: lo, an interface for each
// device, and one without. nodad, because an address that is still being examined
// has no GID.
const network = `
link set lo up
link add dummy0 type dummy
link add dummy1 type dummy
link add dummy2 type dummy
addr add 10.0.0.1/24 dev dummy0
addr add 10.0.1.1/24 dev dummy1
addr add 10.0.2.1/24 dev dummy2
addr add fd00::1/64 dev dummy0 nodad
addr add fd00:1::1/64 dev dummy1 nodad
addr add fd00:2::1/64 dev dummy2 nodad
link set dummy0 up
link set dummy1 up
link set dummy2 up
`

// pairNetwork is the same in a pair of guests; %d is the guest's number.
const pairNetwork = `
link set lo up
addr add 10.1.0.%[1]d/24 dev eth0
addr add fd01::%[1]d/64 dev eth0 nodad
link set eth0 up
`

// makeDevices makes the network and the job's RDMA devices and waits until they
// can be used.
func makeDevices(job wire.Job) error {
	if err := unix.Sethostname([]byte(fmt.Sprintf("guest%d", max(job.Pair, 1)))); err != nil {
		return fmt.Errorf("sethostname: %w", err)
	}
	// Not on lo, where siw has a GID of zeros, with which rdma_cm finds no route.
	netdev := map[string]string{"rxe": "dummy0", "siw": "dummy2"}
	script := network
	if job.Pair != 0 {
		netdev = map[string]string{"rxe": "eth0", "siw": "eth0"}
		script = fmt.Sprintf(pairNetwork, job.Pair)
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/eth0/accept_dad", []byte("0"), 0); err != nil {
			return fmt.Errorf("there is no eth0: %w", err)
		}
	}
	if err := batch("ip", script); err != nil {
		return err
	}
	var links strings.Builder
	for _, device := range job.Devices {
		kind := strings.TrimRight(device, "0123456789")
		fmt.Fprintf(&links, "link add %s type %s netdev %s\n", device, kind, netdev[kind])
	}
	if err := batch("rdma", links.String()); err != nil {
		return err
	}
	for _, device := range job.Devices {
		if err := awaitDevice(device); err != nil {
			return err
		}
	}
	return nil
}

// batch lets a program of iproute2 carry out a script, of which every line must
// succeed.
func batch(program, script string) error {
	script = strings.TrimPrefix(script, "\n")
	if script == "" {
		return nil
	}
	path := "/run/" + program + ".batch"
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		return err
	}
	out, err := exec.Command(program, "-b", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w, of\n%sit says\n%s", program, err, script, out)
	}
	return nil
}

// awaitDevice waits until the device's port is active, its address is in the GID
// table, and its character device is there.
func awaitDevice(device string) error {
	var missing string
	for range 500 { // until the kernel's work queues have run, 5 s at most
		if missing = lacks(device); missing == "" {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	entries, _ := os.ReadDir("/sys/class/infiniband")
	return fmt.Errorf("device %s is not ready: %s; there is %v", device, missing, entries)
}

// lacks says what a device has not yet, or nothing.
func lacks(device string) string {
	base := "/sys/class/infiniband/" + device
	state, err := os.ReadFile(base + "/ports/1/state")
	if err != nil {
		return err.Error()
	}
	if !strings.Contains(string(state), "ACTIVE") {
		return "its port's state is " + strings.TrimSpace(string(state))
	}
	if !hasGID(base+"/ports/1/gids", strings.HasPrefix(device, "rxe")) {
		return "its GID table is not filled"
	}
	nodes := findNodes(device)
	if len(nodes) == 0 {
		return "no uverbs device"
	}
	if _, err := os.Stat("/dev/infiniband/" + nodes[0]); err != nil {
		return err.Error()
	}
	return ""
}

// hasGID says whether a GID table has one which is not of zeros, and which stands
// for an IPv4 address, if it should.
func hasGID(table string, mapped bool) bool {
	entries, err := os.ReadDir(table)
	return err == nil && slices.ContainsFunc(entries, func(entry os.DirEntry) bool {
		gid, err := os.ReadFile(table + "/" + entry.Name())
		if err != nil {
			return false
		}
		return strings.HasPrefix(string(gid), "0000:0000:0000:0000:0000:ffff:") ||
			!mapped && strings.Trim(string(gid), "0:\n") != ""
	})
}

// findNodes returns the names of the uverbs devices that belong to device.
func findNodes(device string) (nodes []string) {
	const class = "/sys/class/infiniband_verbs"
	entries, _ := os.ReadDir(class)
	for _, entry := range entries {
		name, _ := os.ReadFile(class + "/" + entry.Name() + "/ibdev")
		if strings.TrimSpace(string(name)) == device {
			nodes = append(nodes, entry.Name())
		}
	}
	return nodes
}
