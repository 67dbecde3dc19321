// Package kernelcm connects queue pairs over the kernel's RDMA devices (InfiniBand,
// RoCE, iWARP) by the kernel's connection manager rdma_cm: the routing table says
// which device leads to an address, and the peer may be any program that uses
// rdma_cm. [New] makes the fabric; a [Config] restricts it to a device, a port of it,
// or a transport.
//
// The process has one descriptor of /dev/infiniband/rdma_cm for all connections;
// commands and events have the form of rdma/rdma_user_cm.h. What goes over the wire is
// the connection managers' own: messages of the InfiniBand specification, volume 1,
// chapter 12, with the header of its annex A11 in the private data, or MPA (RFC 5044
// and 6581).
package kernelcm
