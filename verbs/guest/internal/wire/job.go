package wire

// JobPath is where the job lies in the guest, as JSON.
const JobPath = "/job.json"

// PortName is the name of the virtio port that carries the messages.
const PortName = "ramjet"

// Job is what one guest does: which devices it makes and what it runs.
type Job struct {
	Modules []Module // loaded in this order
	Devices []string // made and demanded: rxe0, siw0
	Pair    int      // 1 or 2 in a pair of guests: eth0 is 10.1.0.Pair; else 0
	Memlock uint64   // RLIMIT_MEMLOCK of the program, in bytes

	Program string   // path in the guest, or a name to look for in PATH
	Args    []string // without the program's name
	Env     []string // the program's whole environment; of several of one name the last counts
	Dir     string   // its working directory
	Merge   bool     // standard output and error are one stream

	// Files, and what lies in Directories, go to the host after the program's end, as
	// far as they exist. The directories are there before it.
	Files, Directories []string
}

// Module is a kernel module in the guest.
type Module struct {
	Path       string
	Parameters string
}
