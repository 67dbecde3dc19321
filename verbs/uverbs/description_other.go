//go:build !linux

package uverbs

// Describe describes all RDMA devices of this host: none, for this is not
// Linux.
func Describe() ([]Description, error) { return nil, nil }
