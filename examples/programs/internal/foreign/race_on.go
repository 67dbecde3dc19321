//go:build race

package foreign

// buildFlags are for the proxy what this program was built with.
var buildFlags = []string{"-race"}
