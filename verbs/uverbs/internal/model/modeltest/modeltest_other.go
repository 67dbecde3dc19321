//go:build !linux || !(amd64 || arm64)

// Package modeltest runs tests on the model of RDMA devices, on Linux.
package modeltest
