// Guest runs programs in a virtual machine whose kernel has RDMA devices: rxe (RoCE)
// on a dummy interface and siw (iWARP) on another. It is a wrapper for go test:
//
//	go build -o /tmp/guest ./verbs/guest
//	go test -exec "/tmp/guest -kernel 6.1" ./verbs/uverbs
//
// The tests run in the guest with the arguments, the part of the environment that
// is meant for them, and the directory that they would have here; what they print
// and their exit status come out of this program. Commands that the guest has run
// as well:
//
//	/tmp/guest -- sh -c 'rdma link; ibv_devinfo'
//
// # What a guest is
//
// Debian's kernel, its RDMA modules, and siw, which Debian leaves out, built from
// Debian's source; busybox, dash, iproute2, and the C programs for RDMA
// (ibverbs-utils, rdmacm-utils, perftest). All come from apt, are unpacked without
// being installed, and stay in ramjet-guest in the user's cache directory until
// somebody removes them. The kernel boots without a disk: its root file system is
// three cpio archives one after the other, of which the last, with the program and
// its files, is made for each run. The first process is this program again; see
// package inside.
//
// QEMU runs it, mostly by emulation, about ten times slower than the host. Output,
// results and signals travel over a virtio port (package wire), which carries 100
// MB/s where a serial line carries 0.7; the console is the kernel's alone and is
// shown when something goes wrong.
//
// # What a program finds
//
// The devices that -devices names, in RAMJET_DEVICES too, and ready: a guest that
// lacks one fails. rxe0 is on dummy0 (10.0.0.1 and fd00::1), siw0 on dummy2
// (10.0.2.1 and fd00:2::1); dummy1 (10.0.1.1 and fd00:1::1) has none. The program
// is root in a system with cgroup2 and its rdma controller, /tmp, and a user guest
// with the number 1000.
//
// With -pair two guests run the program, joined by a wire: eth0 is 10.1.0.1 in the
// first and 10.1.0.2 in the second, with rxe0 on it, RAMJET_PEER is the other's
// address, and RAMJET_ROLE is peer in the second, which is ended after the first.
// The first may outlive it: a peer that turns itself off is a machine that dies.
package main
