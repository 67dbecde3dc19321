package child

import (
	"os/exec"
	"runtime"
	"syscall"
)

// Tie starts a command that ends with this program, also if that is killed: it
// gets the signal that its SysProcAttr names for that, SIGKILL if none. gone is
// to be closed when it has ended.
func Tie(cmd *exec.Cmd, gone <-chan struct{}) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if cmd.SysProcAttr.Pdeathsig == 0 {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started := make(chan error, 1)
	go func() {
		// The kernel sends the signal when the thread ends that made the
		// process: this one stays as long as it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			<-gone // ended by the end of the process
		}
	}()
	return <-started // ended by the start
}
