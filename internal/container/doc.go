// Package container starts processes as the containers of one network are: in network, PID,
// IPC, UTS and mount namespaces of their own, with an address in the network.
package container
