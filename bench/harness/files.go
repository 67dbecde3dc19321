package harness

import "fmt"

// spareFiles is how many files a measured process opens beside those of its
// connections: gnet's client has each descriptor twice while it dials.
const spareFiles = 200

// What a session of ramjet has on each side, and what this process has for each that it starts: two
// pipes, and on Linux the process's own.
const (
	sessionFiles = 3
	processFiles = 3
)

// filesFor is how many files a process may have to open for a test: the server, or where there are
// many client processes this one, which has those of all transports at once.
func filesFor(t transport, w workload, transports int) int {
	server := sessionFiles * w.clients()
	if t.files {
		server = w.Conns * w.clients()
	}
	if w.Hop || w.Local {
		server *= 2 // to the backend, or the client's
	}
	return max(server, processFiles*transports*w.clients()) + spareFiles
}

// allowFor makes sure that a process may open as many files as the workload
// needs over a transport, beside that many transports. The processes that are
// started from here on inherit the limit.
func allowFor(transport string, w workload, transports int) error {
	t, err := transportByName(transport)
	if err != nil || !t.files && w.clients() == 1 {
		return err
	}
	need := filesFor(t, w, transports)
	if has, err := allowFiles(need); err != nil {
		return fmt.Errorf("%d open files are needed, and %d are allowed (%w)", need, has, err)
	}
	return nil
}
