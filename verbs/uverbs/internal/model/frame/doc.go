// Package frame runs programs on device files that exist in user space only.
//
// A [Host] is a machine as its programs see it: device nodes below /dev and
// files below /sys/class. [Host.Start] runs a program on it, unmodified and at
// native speed, with a seccomp filter whose user notifications tell this process
// of the few system calls that matter: opening and looking at what the host has,
// and write, ioctl and close of its descriptors. All others go to the kernel.
// Neither privileges nor kernel modules are needed.
//
// The descriptor of a node is a memfd, so that the program maps the node's pages
// by itself and both sides see what the other stores there. The program's memory
// is reached by /proc/PID/mem.
//
// The kernel tells of a system call with the number of its thread. That says which process it is
// while the call waits for its answer, and no longer: what is kept of a process, or used later,
// is bound to descriptors of it ([Process]).
//
// This package parses the commands of uverbs (write, its extended form, and the ioctl
// that carries write commands) into a [Request], and the device carries them out. A
// device is a [Node] with an Open function.
//
// The filter does not see a descriptor whose number is outside of its range (dup), or
// a system call that is not listed (writev, io_uring). The program then gets the
// kernel's answer for a memfd.
package frame
