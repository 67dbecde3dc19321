package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/wire"
)

// plan is what a machine consists of.
type plan struct {
	kernel string   // uncompressed
	initrd *os.File // its root file system, or nil
	memory int      // MiB
	cpus   int
	accel  string   // tcg or kvm
	tsc    int64    // frequency of the time stamp counter, in kHz, or 0
	append string   // more kernel parameters
	wire   *os.File // to the other guest of a pair, or nil
	mac    string
	echo   io.Writer // gets the console as it comes, or nil
}

// machine is a QEMU that runs.
type machine struct {
	port    *os.File // the messages' port
	console *console
	cmd     *exec.Cmd
	ended   chan struct{} // closed when QEMU has ended
}

// kernelParameters make the guest boot fast, and report why it dies. The random
// numbers that booting would wait for come from the processor; an oops ends the
// machine, and with it the test. The console gets warnings and what is worse.
const kernelParameters = "console=ttyS0 quiet loglevel=5 panic=-1 oops=panic random.trust_cpu=on mitigations=off " +
	"no_timer_check tsc=reliable cryptomgr.notests 8250.nr_uarts=1"

// parameters returns the kernel's command line. KVM tells its guests the
// frequency of the counter by itself.
func (p plan) parameters() string {
	parameters := kernelParameters
	if p.tsc > 0 && p.accel == "tcg" {
		parameters += fmt.Sprintf(" tsc_early_khz=%d", p.tsc)
	}
	return parameters + " " + p.append
}

// boot starts QEMU. It dies with this program, however that ends.
func boot(p plan) (*machine, error) {
	ends, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer ends[1].Close()
	args := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-machine", "pc", "-m", strconv.Itoa(p.memory), "-smp", strconv.Itoa(p.cpus),
		"-kernel", p.kernel, "-append", p.parameters(),
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=port,fd=3",
		"-device", "virtserialport,chardev=port,name=" + wire.PortName,
	}
	args = append(args, accelerator(p.accel)...)
	files := []*os.File{ends[1]}
	inherit := func(file *os.File) (number string) {
		files = append(files, file)
		return strconv.Itoa(2 + len(files))
	}
	if p.initrd != nil {
		args = append(args, "-initrd", "/proc/self/fd/"+inherit(p.initrd))
	}
	if p.wire != nil {
		args = append(args, "-netdev", "socket,id=net,fd="+inherit(p.wire),
			"-device", "virtio-net-pci,netdev=net,romfile=,mac="+p.mac)
	}
	m := &machine{
		port:    ends[0],
		console: &console{echo: p.echo},
		cmd:     exec.Command("qemu-system-x86_64", args...),
		ended:   make(chan struct{}),
	}
	m.cmd.Stdout, m.cmd.Stderr = m.console, m.console
	m.cmd.ExtraFiles = files
	// In a group of its own, for the terminal's signals are for this program, which ends it.
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		// The signal comes when the thread that has started it ends: it must not
		// end before QEMU does.
		runtime.LockOSThread()
		started <- m.cmd.Start()
		m.cmd.Wait() // until kill, a panic of the guest, or its power-off
		close(m.ended)
	}()
	if err := <-started; err != nil { // comes from the goroutine above, at once
		ends[0].Close()
		return nil, fmt.Errorf("start the virtual machine: %w", err)
	}
	return m, nil
}

// accelerator returns the arguments that say how QEMU runs instructions. What is
// off is slow in emulation: page tables of five levels, the instructions around
// accesses to user space, and above all copying by REP MOVSB, which goes byte by
// byte and which C library, Go and kernel take if the processor recommends it (erms).
func accelerator(name string) []string {
	if name == "kvm" {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", "tcg,thread=multi", "-cpu", "max,la57=off,erms=off,smap=off"}
}

// kill ends the machine and waits until it has ended.
func (m *machine) kill() {
	m.cmd.Process.Kill()
	<-m.ended // the kernel ends a killed process
	m.port.Close()
}

// socketPair returns two ends of a stream. Neither is inherited by other processes
// than those which it is given to.
func socketPair() (ends [2]*os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ends, fmt.Errorf("socketpair: %w", err)
	}
	// Without waiting, so that a read ends when the file is closed.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return ends, fmt.Errorf("socketpair: %w", err)
	}
	return [2]*os.File{os.NewFile(uintptr(fds[0]), "port"), os.NewFile(uintptr(fds[1]), "port")}, nil
}

// console keeps the end of what the guest's kernel and QEMU say.
type console struct {
	mu   sync.Mutex
	text bytes.Buffer
	echo io.Writer
}

// consoleSize is how much of the console is kept, in bytes, at least.
const consoleSize = 256 << 10

func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.echo != nil {
		c.echo.Write(b)
	}
	if c.text.Len() > 2*consoleSize {
		c.text.Next(c.text.Len() - consoleSize)
	}
	return c.text.Write(b)
}

// complaints says whether the kernel has found something wrong with itself which
// it has survived.
func (c *console) complaints() bool {
	text := c.String()
	for _, mark := range []string{"WARNING: CPU:", "BUG: ", "INFO: task ", "rcu: INFO: ", "Call Trace:"} {
		if strings.Contains(text, mark) {
			return true
		}
	}
	return false
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}
