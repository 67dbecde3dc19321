//go:build amd64 || arm64

// Model runs programs on a model of RDMA devices in user space. See the README.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
)

// failure is the exit status if programs could not be run, or a driver has done what a
// device cannot make sense of. Otherwise it is that of the first program that failed.
const failure = 125

func main() {
	frame.Main()
	verbose := flag.Bool("v", false, "print commands, and what the devices do, on standard error")
	write := flag.Bool("write", false, "offer commands by write only, as kernels before 5.0 did")
	hostile := flag.Uint64("hostile", 0, "make the devices awkward (late, out of order between QPs), by this `seed`; 0: do not")
	wqes := flag.Bool("wqe", false, "print each WQE, in hexadecimal, on standard error")
	cut := flag.Duration("cut", 0, "take the devices' links away one after the other, each `for so long`; 0: do not")
	link := flag.String("link", "ib", "the ports' `link`: ib or eth (RoCE)")
	network := flag.Bool("net", false, "run in a network namespace, in which the hosts have addresses from 10.77.0.1 on")
	pair := flag.Bool("pair", false, "as -net, and run the program on two hosts: the first has RAMJET_PEER=10.77.0.2, the second\nRAMJET_PEER=10.77.0.1 and RAMJET_ROLE=peer; it is ended with the first")
	driver := flag.String("driver", "mlx5", "with -net, the `driver` of ours that Go's tests are to use: mlx5 or mlx5-blueflame")
	static := flag.Bool("static", false, "offer no dynamic UARs, as kernels before 5.7 did")
	delay := flag.Duration("delay", 500*time.Millisecond, "start each program so much later than the one before")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: model [flags] PROGRAM ARGUMENT... [-- PROGRAM ARGUMENT...]...\n"+
			"Each program has a host of its own, with a device; the devices are connected.\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	commands := split(flag.Args())
	if *pair && len(commands) == 1 {
		commands = append(commands, commands[0])
		*network, *delay = true, 0
	}
	device := mlx5.Config{Link: links[*link], StaticUARs: *static || *write}
	if len(commands) == 0 || device.Link == 0 || *pair && len(commands) != 2 {
		flag.Usage()
		os.Exit(failure)
	}
	subnet := fabric.New()
	if *network {
		isolate(len(commands))
		subnet.Addresses = frame.NamespaceAddresses()
	}
	if *hostile != 0 {
		subnet.Hostile = rand.New(rand.NewPCG(*hostile, 0))
	}
	if *wqes {
		subnet.WQE = func(wqe []byte) { fmt.Fprintf(os.Stderr, "wqe %x\n", wqe) }
	}
	if *verbose {
		subnet.Log = func(format string, args ...any) { fmt.Fprintf(os.Stderr, "model: "+format+"\n", args...) }
	}
	go subnet.Run(context.Background())
	status := run(subnet, device, commands, options{*write, *pair, *delay, *cut, *driver})
	if *verbose {
		s := subnet.Stats()
		subnet.Log("%d doorbells, %d WQEs, %d CQEs, %d events", s.Doorbells, s.Requests, s.Completions, s.Events)
	}
	for _, v := range subnet.Violations() {
		fmt.Fprintf(os.Stderr, "model: the driver violates the format: %s\n", v)
		status = failure
	}
	os.Exit(status)
}

// isolate returns in a network namespace with addresses for the hosts.
func isolate(hosts int) {
	const variable = "RAMJET_MODEL_NETWORK"
	if os.Getenv(variable) == "" {
		c := frame.Isolated(os.Args[1:]...)
		c.Env = append(os.Environ(), variable+"=1")
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
		err := c.Run()
		var exit *exec.ExitError
		switch {
		case err == nil:
			os.Exit(0)
		case errors.As(err, &exit):
			os.Exit(exit.ExitCode())
		}
		fmt.Fprintf(os.Stderr, "model: a network namespace: %v\n", err)
		os.Exit(failure)
	}
	if err := frame.AddAddresses(hosts); err != nil {
		fmt.Fprintf(os.Stderr, "model: %v\n", err)
		os.Exit(failure)
	}
}

// roles are what tells the programs of a pair who they are.
var roles = [][]string{{"RAMJET_PEER=10.77.0.2"}, {"RAMJET_PEER=10.77.0.1", "RAMJET_ROLE=peer"}}

var links = map[string]fabric.Link{"ib": fabric.InfiniBand, "eth": fabric.Ethernet}

// split returns the commands that stand between the arguments "--".
func split(args []string) (commands [][]string) {
	var command []string
	for _, a := range append(args, "--") {
		if a != "--" {
			command = append(command, a)
		} else if command != nil {
			commands = append(commands, command)
			command = nil
		}
	}
	return commands
}

// options are those of flags that say how the programs are run.
type options struct {
	write, pair bool
	delay, cut  time.Duration
	driver      string
}

// run has each program run on a host of its own, with a device of that kind.
func run(subnet *fabric.Fabric, kind fabric.Kind, commands [][]string, o options) (status int) {
	var programs []*frame.Program
	var devices []fabric.Device
	for i, command := range commands {
		if i > 0 {
			time.Sleep(o.delay)
		}
		device := kind.NewDevice(subnet)
		devices = append(devices, device)
		host := device.Host()
		host.WriteOnly, host.Log = o.write, subnet.Log
		env := []string{"RAMJET_MODEL=" + strconv.Itoa(i)}
		if len(subnet.Addresses) > 1 { // where rcm works: Go's tests are to use the device
			env = append(env, "RAMJET_DEVICES=mlx5_0", "RAMJET_EXPERIMENTAL="+o.driver)
		}
		if o.pair {
			env = append(env, roles[i]...)
		}
		p, err := host.Start(command, env, os.Stdout, os.Stderr)
		if err != nil {
			fmt.Fprintf(os.Stderr, "model: %v\n", err)
			status = failure
			break
		}
		programs = append(programs, p)
	}
	if o.cut > 0 {
		go fabric.CutLinks(context.Background(), devices, o.cut)
	}
	for i, p := range programs {
		if o.pair && i > 0 {
			p.Kill()
		}
		err := p.Wait()
		if err == nil || o.pair && i > 0 {
			continue
		}
		fmt.Fprintf(os.Stderr, "model: %s: %v\n", commands[i][0], err)
		var exit *exec.ExitError
		if status == 0 {
			status = failure
			if errors.As(err, &exit) && exit.ExitCode() > 0 {
				status = exit.ExitCode()
			}
		}
	}
	return status
}
