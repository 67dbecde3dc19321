// Package netpoll has the waits of devices of the kernel on Go's netpoller, which their
// providers share: for the events of a completion channel, and for those of a device.
package netpoll
