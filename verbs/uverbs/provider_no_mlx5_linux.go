//go:build !amd64 && !arm64

package uverbs

const experimentalDrivers = ""
