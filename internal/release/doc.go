// Package release stores words that may be seen late.
//
// A release store is an atomic store without the fence behind it: whoever sees the new
// value also sees what was written before it, but a load that comes after it may be done
// first. So it is not for a word that is stored before another one is looked at (to arm,
// and then to poll) unless something between the two is a fence.
package release
