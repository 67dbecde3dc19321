//go:build !linux

package wait

import "runtime"

func currentCPU() int { return -1 }

func yieldCPU() { runtime.Gosched() }

func leaveCPU() bool { return false }
