//go:build !linux

package rnet

import "runtime"

func currentCPU() int { return -1 }

func yieldCPU() { runtime.Gosched() }
