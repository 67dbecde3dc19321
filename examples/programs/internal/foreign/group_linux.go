package foreign

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup makes a command the head of a process group, and asks it to end when
// this process ends without having done so.
func ownGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGINT
}

// killGroup kills a process and its children.
func killGroup(head *os.Process) error {
	return syscall.Kill(-head.Pid, syscall.SIGKILL)
}

// Unprivileged makes a command run as another user if this process is root's:
// some servers refuse to run as root.
func Unprivileged(cmd *exec.Cmd) {
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
}

// GiveAway makes a file the property of the user that Unprivileged takes.
func GiveAway(file string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Chown(file, nobody, nobody)
}

// nobody is the user and the group that own nothing.
const nobody = 65534
