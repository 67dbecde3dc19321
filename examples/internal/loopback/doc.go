// Package loopback shows in a test what goes over the loopback interface: over
// TCP, as nothing else of an example uses that interface. A stream through
// shared memory passes no interface, so what the counter does not show has not
// gone over TCP.
package loopback
