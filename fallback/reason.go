package fallback

import "fmt"

// Reason says why a connection got the transport it got. The numbers are not
// stable between versions; the codes that String returns are.
type Reason uint8

// The reasons.
const (
	None             Reason = iota // the preferred transport was taken
	Forced                         // the policy names the transport
	NotLocal                       // the address is on another host
	Directory                      // the directory has not led to the address
	NoListener                     // nobody there speaks ramjet
	NoDevice                       // no device that reaches the address
	PeerDenied                     // the peer belongs to another user
	PeerRejected                   // the peer's listener said no
	HandshakeTimeout               // the peer did not answer in time
	HandshakeGarbage               // the peer's answer made no sense
	VersionMismatch                // no common protocol version
	PeerDied                       // the peer went away during set-up
	NoDescriptors                  // EMFILE, ENFILE
	NoMemory                       // ENOMEM
	Memlock                        // RLIMIT_MEMLOCK
	PinLimit                       // the program's own cap on pinned bytes
	MemfdForbidden                 // memfd_create is not allowed
	ShmUnusable                    // shared memory cannot be made or mapped
	Permission                     // EPERM, EACCES
	Cgroup                         // a limit of the control group
	UnsupportedOS                  // the system has no such thing
	Admission                      // too many set-ups at once, or as many streams as a session may have
	Remembered                     // an earlier failure is still remembered
	Callback                       // Dialer.Choose said TCP
	SocketOptions                  // the dial asked for options of a socket
	FakeTime                       // the dial came from a bubble of testing/synctest
	Other                          // none of the above

	reasonCount = iota
)

type reasonText struct{ code, meaning, remedy string }

var reasonTexts = [reasonCount]reasonText{
	None: {"none",
		"the preferred transport was taken",
		"Nothing to do."},
	Forced: {"forced",
		"the policy names this transport and forbids the others",
		"Unset RNET_TRANSPORT, or set Transport to Auto, to let ramjet choose."},
	NotLocal: {"not-local",
		"the address belongs to another host, which this transport does not reach",
		"Run both ends on one host, or use an RDMA device that reaches the address."},
	Directory: {"directory",
		"the directory in which processes of this host meet cannot be used, or knows nobody at the address",
		"If the peer is on this host, give both ends one directory (RNET_DIR) that is safe to use: the error says what is wrong with it."},
	NoListener: {"no-listener",
		"nothing at the address answers to ramjet, only to TCP if at all",
		"Let the peer listen with rnet.Listen on that address, in the same network namespace or with a directory (RNET_DIR) in common."},
	NoDevice: {"no-device",
		"no RDMA device reaches the address",
		"Check with `rdma link` that a device is active on the interface that routes to the address."},
	PeerDenied: {"peer-denied",
		"the process at the other end belongs to another user",
		"Run both ends as the same user; or allow each other in Dialer.Allow and ListenConfig.Allow, with a directory in common if their network namespaces differ."},
	PeerRejected: {"peer-rejected",
		"the peer's listener refused the accelerated connection",
		"Look at the peer's log for the reason, often a full backlog or a limit."},
	HandshakeTimeout: {"handshake-timeout",
		"the peer did not finish the accelerated handshake in time",
		"Check whether the peer is overloaded or stopped, or allow a longer head start."},
	HandshakeGarbage: {"handshake-garbage",
		"the peer's part of the handshake made no sense",
		"Check that the program at the address is a ramjet program and not something else under its name."},
	VersionMismatch: {"version-mismatch",
		"the two ends have no protocol version in common",
		"Build both ends with releases of ramjet that share a protocol version."},
	PeerDied: {"peer-died",
		"the peer went away during the handshake",
		"Check whether the peer crashed or was restarted."},
	NoDescriptors: {"no-descriptors",
		"the process or the system is out of file descriptors",
		"Raise RLIMIT_NOFILE (ulimit -n), or fs.file-max for the system."},
	NoMemory: {"no-memory",
		"memory for rings or queues could not be had",
		"Raise the memory limit of the process or its control group, or use smaller rings."},
	Memlock: {"memlock",
		"RLIMIT_MEMLOCK does not allow the rings to be pinned",
		"Raise it with ulimit -l, or LimitMEMLOCK= in the systemd unit."},
	PinLimit: {"pin-limit",
		"the program's own cap on pinned bytes is reached",
		"Raise the cap with verbs.SetPinLimit, or close connections."},
	MemfdForbidden: {"memfd-forbidden",
		"the system or a sandbox forbids memfd_create",
		"Allow memfd_create in the seccomp profile of the container or service."},
	ShmUnusable: {"shm-unusable",
		"shared memory cannot be created, sized or mapped",
		"Check the memory limit of the container and the free memory; /dev/shm and its size do not matter."},
	Permission: {"permission",
		"the process lacks the permission for the device or call",
		"Check the permissions of /dev/infiniband, and the sandbox of the process: the error says what it lacks."},
	Cgroup: {"cgroup",
		"a limit of the control group is reached",
		"Raise rdma.max (hca_handle, hca_object) or memory.max of the control group."},
	UnsupportedOS: {"unsupported-os",
		"this operating system or kernel has no accelerated transport",
		"Run on Linux, amd64 or arm64."},
	Admission: {"admission",
		"too many connections were being set up at once",
		"Nothing to do, later dials try again; dial fewer at the same moment."},
	Remembered: {"remembered",
		"the address failed a moment ago and is not tried again yet",
		"See the decision before this one for the cause; it is tried again soon."},
	Callback: {"callback",
		"the Choose function of the Dialer asked for TCP",
		"Change what it returns for this address."},
	SocketOptions: {"socket-options",
		"the dial sets a local address, or an option that only packets have",
		"Leave LocalAddr of the Dialer unset, and set nothing in Control that says where packets go or as whose."},
	FakeTime: {"fake-time",
		"the call came from a bubble of testing/synctest, which has a clock of its own",
		"Nothing to do; sessions live by the clock that the network has, outside of the bubble."},
	Other: {"other",
		"something else failed",
		"Read the error beside this reason."},
}

func (r Reason) text() reasonText {
	if r < reasonCount {
		return reasonTexts[r]
	}
	return reasonTexts[Other]
}

// String returns the reason's short code, such as "no-listener".
func (r Reason) String() string {
	if r < reasonCount {
		return reasonTexts[r].code
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// Meaning returns what the reason says about the connection, as half a sentence
// without a full stop.
func (r Reason) Meaning() string { return r.text().meaning }

// Remedy returns what a user can do about it, as one sentence.
func (r Reason) Remedy() string { return r.text().remedy }
