// Package abi has the kernel's interface for RDMA devices, as the provider and its
// drivers use it: the structures of its headers, the commands and the two ways in
// which they are given, and what turns memory into structures.
//
//	verbs.go          the structures of rdma/ib_user_verbs.h
//	command.go        its commands
//	ioctl.go          rdma/rdma_user_ioctl_cmds.h and rdma/ib_user_ioctl_cmds.h
//	file_linux.go     a descriptor to which commands are given
//	call_linux.go     a call of the ioctl interface
//	prepared_linux.go commands that are laid out once and given again and again
//	page_linux.go     memory for commands
//	memory_unsafe.go  everything that is unsafe, but for system calls
//
// What differs between drivers is in the packages of the drivers.
package abi
