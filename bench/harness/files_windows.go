package harness

// allowFiles: there is no limit that a process could hit with its sockets.
func allowFiles(n int) (has uint64, err error) { return uint64(n), nil }
