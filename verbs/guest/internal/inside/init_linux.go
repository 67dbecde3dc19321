package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/wire"
)

// Main is the life of the guest. It does not return: the machine ends with it.
func Main() {
	var port *os.File
	status, err := live(&port)
	var untold error
	switch {
	case err == nil:
		untold = wire.Write(port, wire.Exit, status.Append(nil))
	case port != nil:
		untold = wire.Write(port, wire.Failed, []byte(err.Error()))
	}
	err = errors.Join(err, untold)
	if err != nil {
		// The console is the last resort, and the host shows it.
		fmt.Printf("guest: %v\n", err)
		unix.IoctlSetInt(1, unix.TCSBRK, 1) // tcdrain
	}
	// The host ends the machine: at once, or that of a peer with the other. If the host has
	// gone, or cannot be told anything, nobody is left to do it.
	if port != nil && untold == nil {
		io.Copy(io.Discard, port)
	}
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// live is everything up to the program's end. The port is set as soon as it is
// open.
func live(port **os.File) (wire.Status, error) {
	if err := mountAll(); err != nil {
		return wire.Status{}, err
	}
	text, err := os.ReadFile(wire.JobPath)
	if err != nil {
		return wire.Status{}, err
	}
	var job wire.Job
	if err := json.Unmarshal(text, &job); err != nil {
		return wire.Status{}, fmt.Errorf("the job: %w", err)
	}
	os.Clearenv() // the program has this environment too
	for _, variable := range job.Env {
		name, value, _ := strings.Cut(variable, "=")
		os.Setenv(name, value)
	}
	for _, module := range job.Modules {
		if err := load(module); err != nil {
			return wire.Status{}, err
		}
		if *port == nil {
			if *port, err = openPort(); err != nil {
				return wire.Status{}, err
			}
		}
	}
	if *port == nil {
		return wire.Status{}, fmt.Errorf("no module brought a port named %s", wire.PortName)
	}
	if err := makeDevices(job); err != nil {
		return wire.Status{}, err
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return wire.Status{}, fmt.Errorf("uname: %w", err)
	}
	ready := fmt.Sprintf("linux %s, up for %.1f s", unix.ByteSliceToString(uts.Release[:]), uptime())
	if err := wire.Write(*port, wire.Ready, []byte(ready)); err != nil {
		return wire.Status{}, err
	}
	if job.Pair != 0 {
		// Until the host knows that the other guest is ready; it ends both if it does not.
		if kind, _, err := wire.Read(*port); err != nil || kind != wire.Begin {
			return wire.Status{}, fmt.Errorf("waiting for the other guest: message %q, %w", kind, err)
		}
	}
	status, err := run(job, *port)
	if err != nil {
		return wire.Status{}, err
	}
	return status, sendFiles(*port, slices.Concat(job.Files, job.Directories))
}

// load puts a module into the kernel.
func load(module wire.Module) error {
	file, err := os.Open(module.Path)
	if err != nil {
		return fmt.Errorf("a kernel module is missing: %w", err)
	}
	defer file.Close()
	err = unix.FinitModule(int(file.Fd()), module.Parameters, 0)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load %s: %w", module.Path, err)
	}
	return nil
}

// openPort opens the virtio port to the host, if the kernel has it by now. The
// port's name comes in a message of the device, a moment after the port.
func openPort() (*os.File, error) {
	const ports = "/sys/class/virtio-ports"
	if _, err := os.Stat(ports); err != nil {
		return nil, nil // virtio_console is not loaded yet
	}
	for range 500 { // until the device has spoken, 5 s at most
		entries, err := os.ReadDir(ports)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			name, _ := os.ReadFile(ports + "/" + entry.Name() + "/name")
			if strings.TrimSpace(string(name)) == wire.PortName {
				return os.OpenFile("/dev/"+entry.Name(), os.O_RDWR, 0)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("no virtio port named %s", wire.PortName)
}

// uptime is the age of this kernel, in seconds.
func uptime() (seconds float64) {
	text, err := os.ReadFile("/proc/uptime")
	if err == nil {
		fmt.Sscan(string(text), &seconds)
	}
	return seconds
}
