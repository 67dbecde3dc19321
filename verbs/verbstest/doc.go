// Package verbstest checks that a provider does what package verbs and the
// InfiniBand Architecture Specification say. It knows nothing of any
// provider: [Run] is given two open contexts that can reach each other, and
// looks at the capability bits to see which tests apply.
//
//	func TestSemantics(t *testing.T) {
//		verbstest.Run(t, func(t testing.TB) verbstest.Pair {
//			return verbstest.Pair{A: open(t), B: open(t)}
//		})
//	}
package verbstest
