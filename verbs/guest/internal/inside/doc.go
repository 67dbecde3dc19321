// Package inside is the first process of the guest: it mounts the file systems,
// loads the modules, makes the RDMA devices and sees that they are there, runs
// the job's program, and tells the host how it went. Everything that goes wrong
// ends the guest with a message; nothing is skipped.
package inside
