//go:build !linux

package wait

import (
	"runtime"
	"time"
)

func currentCPU() int { return -1 }

func yieldCPU() { runtime.Gosched() }

func leaveCPU() bool { return false }

func joinCPU(int) bool { return false }

type threadDelays struct{}

func (*threadDelays) since(time.Duration) time.Duration { return 0 }
