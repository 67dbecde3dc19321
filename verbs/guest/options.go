package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// options is the command line.
type options struct {
	kernel  string
	devices []string
	pair    bool
	memory  int // MiB
	cpus    int
	memlock int64 // KiB
	accel   string
	limit   time.Duration // for all but the boot; 0 for none
	boot    time.Duration
	install bool
	prepare bool
	verbose bool
	cache   string
	append  string
	env     list
	files   list

	inside  bool     // program is a name in the guest, not a file of the host
	program string   // empty with prepare only
	args    []string // its arguments
}

// boots is how often a guest is booted at most. See run.boot.
const boots = 3

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

const usage = `usage: guest [flags] PROGRAM [ARGUMENTS]     run a program of this machine in a guest
       guest [flags] -- COMMAND [ARGUMENTS]  run a command that the guest has
       go test -exec "guest [flags]" PACKAGES

flags:
`

// parse reads the command line without the program's own name. Of errors and of
// -help it writes to out what it has to say.
func parse(args []string, out io.Writer) (options, error) {
	var o options
	var devices string
	set := flag.NewFlagSet("guest", flag.ContinueOnError)
	set.SetOutput(out)
	set.Usage = func() {
		fmt.Fprint(out, usage)
		set.PrintDefaults()
	}
	set.StringVar(&o.kernel, "kernel", "6.1", "Debian's kernel of this `series`: 6.1 or 6.12")
	set.StringVar(&devices, "devices", "", "RDMA devices to make and to demand, separated by commas\n(default \"rxe0,siw0\", with -pair \"rxe0\"; \"none\" for none)")
	set.BoolVar(&o.pair, "pair", false, "run the program in two guests that a wire joins; the second one's environment\nsays RAMJET_ROLE=peer")
	set.IntVar(&o.memory, "memory", 2048, "memory of a guest, in `MiB`")
	set.IntVar(&o.cpus, "cpus", 0, "processors of a guest (default 2, with -pair 1)")
	set.Int64Var(&o.memlock, "memlock", 8192, "RLIMIT_MEMLOCK of the program, in `KiB`; -1 for none")
	set.StringVar(&o.accel, "accel", "auto", "how QEMU runs the guest: tcg, kvm, or auto for kvm where it works")
	set.DurationVar(&o.limit, "timeout", 0, "time limit for the program (default what -test.timeout says, or 10m)")
	set.DurationVar(&o.boot, "boot-timeout", time.Minute, fmt.Sprintf("time limit for the boot, of which there are up to %d", boots))
	set.BoolVar(&o.install, "install", false, "install the packages that this machine lacks, with apt-get")
	set.BoolVar(&o.prepare, "prepare", false, "only make what guests consist of, if the cache does not have it")
	set.BoolVar(&o.verbose, "v", false, "say what happens, and show the console and the peer's output")
	set.StringVar(&o.cache, "cache", "", "`directory` for what guests consist of (default in the user's cache directory)")
	set.StringVar(&o.append, "append", "", "more `parameters` for the guest's kernel")
	set.Var(&o.env, "env", "environment variable `NAME=VALUE` for the program; may be repeated")
	set.Var(&o.files, "file", "file or directory `FROM[:TO]` to copy into the guest; may be repeated")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	rest := set.Args()
	o.inside = len(rest) < len(args) && args[len(args)-len(rest)-1] == "--"
	if len(rest) > 0 {
		o.program, o.args = rest[0], rest[1:]
	} else if !o.prepare {
		set.Usage()
		return o, errors.New("no program to run")
	}
	if o.cpus == 0 {
		o.cpus = 2
		if o.pair {
			o.cpus = 1
		}
	}
	switch {
	case devices == "" && o.pair:
		devices = "rxe0"
	case devices == "":
		devices = "rxe0,siw0"
	case devices == "none":
		devices = ""
	}
	o.devices = slices.DeleteFunc(strings.Split(devices, ","), func(s string) bool { return s == "" })
	return o, o.check()
}

func (o *options) check() error {
	for _, device := range o.devices {
		if kind := deviceKind(device); kind != "rxe" && kind != "siw" || kind == device {
			return fmt.Errorf("device %q is neither an rxe nor a siw with a number", device)
		}
	}
	for _, variable := range o.env {
		if name, _, ok := strings.Cut(variable, "="); !ok || name == "" {
			return fmt.Errorf("-env %s is not of the form NAME=VALUE", variable)
		}
	}
	switch {
	case o.prepare && o.program != "":
		return fmt.Errorf("-prepare runs nothing, also not %s", o.program)
	case !slices.Contains([]string{"auto", "tcg", "kvm"}, o.accel):
		return fmt.Errorf("-accel %s: there are tcg, kvm and auto", o.accel)
	case o.memory < 256:
		return fmt.Errorf("-memory %d: a guest does not boot with less than 256 MiB", o.memory)
	case o.cpus < 1 || o.cpus > 64:
		return fmt.Errorf("-cpus %d: not between 1 and 64", o.cpus)
	case o.limit < 0 || o.boot <= 0:
		return errors.New("a time limit is not above zero")
	}
	return nil
}

// deviceKind returns the type of a device by its name: rxe for rxe0.
func deviceKind(device string) string { return strings.TrimRight(device, "0123456789") }

// timeLimit returns how long the program may run: what the flag says, or else its
// own limit if it is a test, with a moment to say that it was reached. 0 is no
// limit.
func (o *options) timeLimit() time.Duration {
	if o.limit > 0 {
		return o.limit
	}
	if text, ok := testFlag(o.args, "timeout"); ok && !o.inside {
		if limit, err := time.ParseDuration(text); err == nil {
			if limit <= 0 {
				return 0
			}
			return limit + 15*time.Second
		}
	}
	return 10 * time.Minute
}

// testFlag returns the value of a flag of a test binary as go test writes it:
// -test.name=value.
func testFlag(args []string, name string) (string, bool) {
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, "-test."+name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// testArgs returns a test binary's arguments as the guest gets them. Left out is
// the log of what a test reads, from which go test learns whether an earlier
// result still counts: it does not, because the kernel counts too.
func testArgs(args []string) []string {
	return slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return strings.HasPrefix(arg, "-test.testlogfile=")
	})
}

// results returns the files that a test binary with these arguments writes for go
// test, and the directories in which it writes files, as absolute paths.
func results(args []string, dir string) (files, directories []string) {
	below := func(base, name string) string {
		if filepath.IsAbs(name) {
			return filepath.Clean(name)
		}
		return filepath.Join(base, name)
	}
	output, _ := testFlag(args, "outputdir")
	output = below(dir, output)
	for _, name := range []string{"coverprofile", "cpuprofile", "memprofile", "blockprofile", "mutexprofile", "trace"} {
		if file, ok := testFlag(args, name); ok && file != "" {
			files = append(files, below(output, file))
		}
	}
	if coverage, ok := testFlag(args, "gocoverdir"); ok && coverage != "" {
		directories = append(directories, below(dir, coverage))
	}
	if artifacts, _ := testFlag(args, "artifacts"); artifacts == "true" {
		directories = append(directories, filepath.Join(output, "_artifacts"))
	}
	if target, ok := testFlag(args, "fuzz"); ok && target != "" {
		directories = append(directories, filepath.Join(dir, "testdata", "fuzz"))
	}
	return files, directories
}

// environment returns what the program in the guest sees: what every program needs,
// what of the host's environment is meant for it, and the flags' additions.
func (o *options) environment(host []string) []string {
	env := []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "USER=root", "SHELL=/bin/sh",
		"TMPDIR=/tmp", "LANG=C.UTF-8", "RAMJET_DEVICES=" + strings.Join(o.devices, ","),
	}
	for _, variable := range host {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "RNET_") || strings.HasPrefix(name, "RAMJET_") && name != "RAMJET_DEVICES" ||
			slices.Contains([]string{"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GORACE", "GOTRACEBACK"}, name) {
			env = append(env, variable)
		}
	}
	return append(env, o.env...)
}

// copied splits the value of -file into the path here and the path in the guest.
func copied(value string) (from, to string, err error) {
	from, to, ok := strings.Cut(value, ":")
	if !ok {
		if to, err = filepath.Abs(from); err != nil {
			return "", "", err
		}
	}
	if !filepath.IsAbs(to) {
		return "", "", fmt.Errorf("-file %s: the place in the guest is not absolute", value)
	}
	_, err = os.Stat(from)
	return from, to, err
}
