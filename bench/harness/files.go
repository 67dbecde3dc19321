package harness

import "fmt"

// spareFiles is how many files a measured process opens beside those of its
// connections: gnet's client has each descriptor twice while it dials.
const spareFiles = 200

// allowFor makes sure that a process may open as many files as the workload
// needs over a transport. The processes that are started from here on inherit
// the limit.
func allowFor(transport string, w workload) error {
	t, err := transportByName(transport)
	if err != nil || !t.files {
		return err
	}
	need := w.Conns + spareFiles
	if has, err := allowFiles(need); err != nil {
		return fmt.Errorf("%d open files are needed, and %d are allowed (%w)", need, has, err)
	}
	return nil
}
