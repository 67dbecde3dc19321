// Package cm is a model of the kernel's connection manager for RDMA, as programs
// see it behind /dev/infiniband/rdma_cm: rdma_ucm, rdma_cm and ib_cm together
// (drivers/infiniband/core/ucma.c, cma.c and cm.c).
//
// A [Network] connects hosts, each with one IP address and one port of a device. A message
// between two of them arrives at once and is not lost, so that there are no timeouts and no TIMEWAIT, and
// no retries but of a request for which a listener had no room; a peer's kernel answers a disconnect by itself.
//
// The ids of a program are in file_linux.go with the commands, the exchange between two of them
// in connect_linux.go, and what they say of queue pairs in attributes_linux.go.
package cm
