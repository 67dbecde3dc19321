//go:build !linux

package harness

import "errors"

var errNoFloor = errors.New("shared memory is measured on linux only")

type floorServer struct{ server }

func startFloor(workload) (*floorServer, error) { return nil, errNoFloor }

func (s *floorServer) addr() string { return "" }

func joinFloor(workload, string) (worker, error) { return nil, errNoFloor }
