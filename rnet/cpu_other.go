//go:build !linux

package rnet

func currentCPU() int { return -1 }
