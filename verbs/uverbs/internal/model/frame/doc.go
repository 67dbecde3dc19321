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
// is reached by process_vm_readv and process_vm_writev.
//
// The commands of uverbs (write, its extended form, and the ioctl that carries
// write commands) are taken apart here, into a [Request]; what they mean is the
// device's matter. A device is a [Node] with an Open function.
//
// What a program can do to get around this: give the descriptor a number that is
// not in the range that the filter knows (dup), or use a system call that is not
// listed (writev, io_uring). It then gets the kernel's answer for a memfd.
package frame
