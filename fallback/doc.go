// Package fallback decides which transport a connection gets, remembers why,
// and classifies what went wrong, so that a dial always ends in a connection if
// plain TCP would have made one, and so that a user can be told why it did not
// end in a faster one.
//
// It makes no connection itself and knows no transport: package rnet asks it at
// each step of a dial. The parts, in the order of that dial:
//
//   - [Policy] says what is wanted, from the program or the environment
//     ([FromEnv]).
//   - [Memory] remembers for a while which addresses failed lately, and why.
//   - [Gate] limits how many connections are set up at once.
//   - [HeadStart] says how long a dial waits for the accelerated connection
//     before it turns to TCP.
//   - [Classify] turns an error into a [Reason]; code that knows better than an
//     errno says so with [Because].
//   - [Journal] keeps the last [Decision]s of each address and counts them all.
//
// Everything here may be used by any number of goroutines at once. Only the
// standard library is imported, and it builds wherever Go does.
package fallback
