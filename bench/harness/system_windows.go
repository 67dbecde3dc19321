package harness

import (
	"fmt"
	"time"

	"golang.org/x/sys/windows"
)

// cpuTime is the user and system time that this process has used so far.
func cpuTime() time.Duration {
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(windows.CurrentProcess(), &created, &exited, &kernel, &user); err != nil {
		return 0
	}
	return span(kernel) + span(user)
}

// span is the length of time in a Filetime, which counts 100 ns each.
// Filetime.Nanoseconds would subtract the epoch, which a length has none of.
func span(f windows.Filetime) time.Duration {
	return time.Duration(int64(f.HighDateTime)<<32|int64(f.LowDateTime)) * 100
}

// kernelVersion names the system and its release.
func kernelVersion() string {
	v := windows.RtlGetVersion()
	return fmt.Sprintf("Windows %d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber)
}
