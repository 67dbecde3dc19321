package fallback

import (
	"errors"
	"fmt"
	"path/filepath"
)

// Transport is what carries a connection.
type Transport uint8

// The transports. Auto is no transport: it asks for the best one that works. Any other choice
// forbids the rest. Unix is what a dial to a Unix socket gets where TCP would be the plain one, and
// cannot be chosen.
const (
	Auto Transport = iota
	Soft           // the software HCA: shared memory on one host
	RDMA           // a kernel RDMA device
	TCP            // plain TCP
	Unix           // a plain Unix socket

	transportCount = iota
	wishCount      = Unix // those that can be chosen
)

var transportNames = [transportCount]string{"auto", "soft", "rdma", "tcp", "unix"}

// String returns the name as RNET_TRANSPORT has it.
func (t Transport) String() string {
	if t < transportCount {
		return transportNames[t]
	}
	return fmt.Sprintf("transport(%d)", uint8(t))
}

// ParseTransport is the inverse of String for what can be wished for. The empty name is Auto.
func ParseTransport(name string) (Transport, error) {
	i, err := parseName("transport", name, transportNames[:wishCount])
	return Transport(i), err
}

// Profile says what waiting is tuned for.
type Profile uint8

// The profiles.
const (
	Balanced  Profile = iota // polls while it pays
	Latency                  // polls longer, at the expense of CPU time
	Efficient                // never polls

	profileCount = iota
)

var profileNames = [profileCount]string{"balanced", "latency", "efficient"}

// String returns the name as RNET_PROFILE has it.
func (p Profile) String() string {
	if p < profileCount {
		return profileNames[p]
	}
	return fmt.Sprintf("profile(%d)", uint8(p))
}

// ParseProfile is the inverse of String. The empty name is Balanced.
func ParseProfile(name string) (Profile, error) {
	i, err := parseName("profile", name, profileNames[:])
	return Profile(i), err
}

// parseName returns the index of name among names, 0 for the empty one.
func parseName(what, name string, names []string) (int, error) {
	if name == "" {
		return 0, nil
	}
	for i, n := range names {
		if n == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("unknown %s %q, want one of %q", what, name, names)
}

// Policy is what the user wants. The zero Policy lets ramjet choose.
type Policy struct {
	Transport Transport
	Profile   Profile
	Device    Device // the only one to use
	Dir       string // where processes of other network namespaces are met, NoDir for nowhere
	KeyFile   string // holds the key by which they are known; empty for none
	Debug     bool   // print each decision through log/slog
	NoStats   bool   // other processes of the user cannot read the statistics
}

// NoDir is a Policy.Dir that says that processes are met in no directory.
const NoDir = "none"

// FromEnv reads the policy from the environment, through getenv (os.Getenv):
//
//	RNET_TRANSPORT=auto|soft|rdma|tcp
//	RNET_PROFILE=balanced|latency|efficient
//	RNET_DEVICE=soft0|rxe0|mlx5_0/2|...
//	RNET_DIR=none|/run/ramjet|...
//	RNET_KEY_FILE=/run/secrets/ramjet|...
//	RNET_LOG=none|debug
//	RNET_STATS=on|off
//
// A variable that is empty or unset leaves the default. The error names each
// variable with a bad value, the value and what is allowed; the policy holds
// the others.
func FromEnv(getenv func(string) string) (Policy, error) {
	var p Policy
	var errs [7]error
	p.Transport, errs[0] = ParseTransport(getenv("RNET_TRANSPORT"))
	p.Profile, errs[1] = ParseProfile(getenv("RNET_PROFILE"))
	p.Debug, errs[2] = parseLog(getenv("RNET_LOG"))
	p.Device, errs[3] = ParseDevice(getenv("RNET_DEVICE"))
	p.NoStats, errs[4] = parseSwitch(getenv("RNET_STATS"))
	p.Dir, errs[5] = ParseDir(getenv("RNET_DIR"))
	p.KeyFile, errs[6] = parseFile(getenv("RNET_KEY_FILE"))
	for i, name := range []string{"RNET_TRANSPORT", "RNET_PROFILE", "RNET_LOG", "RNET_DEVICE", "RNET_STATS", "RNET_DIR", "RNET_KEY_FILE"} {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("fallback: %s: %w", name, errs[i])
		}
	}
	return p, errors.Join(errs[:]...)
}

// ParseDir checks the name of a directory, which has to be an absolute path, NoDir or
// empty.
func ParseDir(name string) (string, error) {
	if name != "" && name != NoDir && name[0] != '/' {
		return "", fmt.Errorf("directory %q, want an absolute path, or %q", name, NoDir)
	}
	return name, nil
}

func parseFile(name string) (string, error) {
	if name != "" && !filepath.IsAbs(name) {
		return "", fmt.Errorf("file %q, want an absolute path", name)
	}
	return name, nil
}

func parseLog(level string) (debug bool, err error) {
	i, err := parseName("level", level, []string{"none", "debug"})
	return i == 1, err
}

func parseSwitch(text string) (off bool, err error) {
	i, err := parseName("switch", text, []string{"on", "off"})
	return i == 1, err
}
