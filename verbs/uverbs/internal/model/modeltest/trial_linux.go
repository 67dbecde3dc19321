//go:build amd64 || arm64

package modeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
	"github.com/stretchr/testify/require"
)

// packages are what the programs need, from Debian, unpacked and not installed, and the header of
// libibverbs, which a test of package ibverbs compares its structures with.
var packages = []string{"libibverbs1", "ibverbs-providers", "ibverbs-utils", "perftest", "librdmacm1", "rdmacm-utils",
	"libnl-3-200", "libnl-route-3-200", "libibumad3", "libpci3", "libibverbs-dev"}

// rootVariable names the directory to which the packages were unpacked. If it is empty, they
// are downloaded first. suiteVariable names the release of Debian that they are of, if not the
// machine's, as "trixie": with it come the C library that they need, and its loader.
const (
	rootVariable  = "RAMJET_MODEL_ROOT"
	suiteVariable = "RAMJET_MODEL_SUITE"
)

// newer are the packages of a release after Debian 12: those that were renamed, and what the others
// need of the release.
func newer(packages []string) []string {
	packages = slices.Clone(packages)
	packages[slices.Index(packages, "librdmacm1")] = "librdmacm1t64"
	return append(packages, "libc6", "zlib1g", "libudev1", "libcap2")
}

var unpacked = sync.OnceValues(func() (root string, err error) {
	root = os.Getenv(rootVariable)
	if _, err := os.Stat(filepath.Join(root, "usr/bin/rping")); err == nil {
		return root, nil
	}
	return root, unpack(root)
})

// programs returns the directory of the C programs, the loader that they are run by, if they have
// one of their own, and the environment that they need.
func programs(t *testing.T) (bin string, loader, env []string) {
	t.Helper()
	if os.Getenv(rootVariable) == "" {
		t.Skipf("%s is not set: a directory for programs of Debian", rootVariable)
	}
	root, err := unpacked()
	if err != nil {
		skip.Because(t, err)
	}
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	libraries := filepath.Join(root, "usr/lib", triplet)
	path := libraries + ":" + filepath.Join(root, "lib", triplet)
	env = []string{"IBV_DRIVERS=" + filepath.Join(libraries, "libibverbs/libmlx5")}
	if os.Getenv(suiteVariable) == "" {
		return filepath.Join(root, "usr/bin"), nil, append(env, "LD_LIBRARY_PATH="+path)
	}
	found, err := filepath.Glob(filepath.Join(libraries, "ld-linux-*.so*"))
	require.NoError(t, err)
	require.Len(t, found, 1, "the loader in %s", libraries)
	return filepath.Join(root, "usr/bin"), []string{found[0], "--library-path", path}, env
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
	wanted, options := packages, []string{"-qq", "-o", "Acquire::Retries=3"}
	if suite := os.Getenv(suiteVariable); suite != "" {
		var err error
		if options, err = releaseOf(dir, suite, options); err != nil {
			return err
		}
		if err := run("apt-get", append(options, "update")...); err != nil {
			return fmt.Errorf("what Debian %s has cannot be had: %w", suite, err)
		}
		wanted = newer(packages)
	}
	if err := run("apt-get", append(append(options, "download"), wanted...)...); err != nil {
		return fmt.Errorf("the programs of Debian cannot be had (is apt's list current? apt-get update): %w", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	for _, file := range files {
		err = errors.Join(err, run("dpkg", "-x", file, dir))
	}
	return err
}

// releaseOf returns apt's options for a release in place of the machine's, with its lists in a
// directory below dir.
func releaseOf(dir, suite string, options []string) ([]string, error) {
	apt := filepath.Join(dir, "apt")
	for _, d := range []string{"lists/partial", "cache/archives/partial", "parts"} {
		if err := os.MkdirAll(filepath.Join(apt, d), 0o755); err != nil {
			return nil, err
		}
	}
	sources := filepath.Join(apt, "sources.list")
	line := "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian " + suite + " main\n"
	for _, o := range []string{
		"Dir::Etc::SourceList=" + sources, "Dir::Etc::SourceParts=" + filepath.Join(apt, "parts"), "Dir::State::Lists=" + filepath.Join(apt, "lists"),
		"Dir::Cache=" + filepath.Join(apt, "cache"), "Dir::State::Status=/dev/null", "APT::Sandbox::User=root", "Acquire::Languages=none",
	} {
		options = append(options, "-o", o)
	}
	return options, os.WriteFile(sources, []byte(line), 0o644)
}

// A Trial is a fabric with hosts on which C programs of Debian run. They are unpacked to the
// directory that RAMJET_MODEL_ROOT names, or from there if it is not empty.
type Trial struct {
	Fabric    *fabric.Fabric
	WriteOnly bool            // see [Config]
	Device    fabric.Kind     // of the devices that are made next; an mlx5.Config{} if not set
	Devices   []fabric.Device // of the programs
	bin       string
	loader    []string // what runs the programs, if not the kernel
	env       []string
}

// NewTrial returns one of hostile devices if there is a seed.
func NewTrial(t *testing.T, seed ...uint64) *Trial {
	t.Helper()
	bin, loader, env := programs(t)
	r := &Trial{Fabric: fabric.New(), Device: mlx5.Config{}, bin: bin, loader: loader, env: env}
	r.Fabric.Hostile = hostile(append(seed, 0)[0])
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Fabric.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return r
}

// Start runs a program on a host of its own: one of Debian, or another one by its absolute path.
func (r *Trial) Start(t *testing.T, output io.Writer, args ...string) *frame.Program {
	t.Helper()
	device := r.Device.NewDevice(r.Fabric)
	r.Devices = append(r.Devices, device)
	host := device.Host()
	host.WriteOnly = r.WriteOnly
	command := append(slices.Clone(r.loader), args...)
	if program := &command[len(r.loader)]; !filepath.IsAbs(*program) {
		*program = filepath.Join(r.bin, *program)
	}
	p, err := host.Start(command, r.env, output, output)
	require.NoError(t, err)
	watch := time.AfterFunc(time.Minute, p.Kill)
	t.Cleanup(func() { watch.Stop() })
	return p
}

// Pair runs a program as server and as client, and returns what they say. It does so again if one of perftest cannot
// measure the processor's clock, which other work disturbs: it says so when all else is done.
func (r *Trial) Pair(t *testing.T, args ...string) (server, client string) {
	t.Helper()
	for try := 1; ; try++ {
		port := FreePort(t)
		args := append(slices.Clone(args), "-p", port)
		var outputs [2]bytes.Buffer
		s := r.Start(t, &outputs[0], args...)
		WaitForListener(t, port)
		c := r.Start(t, &outputs[1], append(args, "127.0.0.1")...)
		clientErr, serverErr := c.Wait(), s.Wait()
		server, client = outputs[0].String(), outputs[1].String()
		if (clientErr != nil || serverErr != nil) && try < 5 && strings.Contains(server+client, "Can't produce a report") {
			continue
		}
		require.NoError(t, clientErr, "client of %v: %s", args, client)
		require.NoError(t, serverErr, "server of %v: %s", args, server)
		require.Empty(t, r.Fabric.Violations())
		return server, client
	}
}

// FreePort returns a TCP port on which nobody listens.
func FreePort(t *testing.T) string {
	t.Helper()
	addr, err := freeport.Address("127.0.0.1")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	return port
}

// WaitForListener waits until somebody listens on a port, without connecting to it: the
// programs take one connection.
func WaitForListener(t *testing.T, port string) {
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

// Connected runs a server, and when it listens a client, and returns what that says.
func (r *Trial) Connected(t *testing.T, server, client string) (output string) {
	t.Helper()
	var outputs [2]bytes.Buffer
	s := r.Start(t, &outputs[0], strings.Fields(server)...)
	require.Eventually(t, func() bool { return r.Fabric.Listens() }, 30*time.Second, time.Millisecond, "nobody listens: %s", &outputs[0])
	c := r.Start(t, &outputs[1], strings.Fields(client)...)
	clientErr, serverErr := c.Wait(), s.Wait()
	require.NoError(t, clientErr, "%s: %s", client, &outputs[1])
	require.NoError(t, serverErr, "%s: %s", server, &outputs[0])
	require.Empty(t, r.Fabric.Violations())
	return outputs[1].String()
}
