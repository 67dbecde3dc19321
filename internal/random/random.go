// Package random has the few random bytes that a session begins with: names, keys of memory
// regions, tokens. They are the system's, as those of crypto/rand, but are not drawn in the
// process: for that the runtime keeps a page for each thread that asks, and what it needs to
// find them, 28 KiB in a program that needs no other random bytes.
package random

import "crypto/rand"

// Read fills b. It cannot fail.
func Read(b []byte) {
	if !fromSystem(b) {
		rand.Read(b)
	}
}
