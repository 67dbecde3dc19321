// Package guesttest holds the tests of the guest itself: they run in it, and show
// that its devices work with the field's C programs on both ends, before anything
// of ours is tried on them. Elsewhere they are skipped.
package guesttest
