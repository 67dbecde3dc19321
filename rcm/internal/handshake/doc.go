// Package handshake has what the handshakes of both backends of package rcm are made
// of: what the parameters mean that a caller leaves out, what two sides agree on, the
// transitions of a QP, the requests that wait for Accept, and the messages of the
// software HCA's connection manager, of which the kernel's carries one, the refusal, as
// private data.
package handshake
