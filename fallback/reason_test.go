package fallback

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryReasonSaysWhatItMeansAndWhatToDo(t *testing.T) {
	code := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	meaning := regexp.MustCompile(`^[^A-Z].*[^.]$|^RLIMIT_.*[^.]$`)
	remedy := regexp.MustCompile(`^[A-Z].*\.$`)
	seen := map[string]Reason{}
	for r := range Reason(reasonCount) {
		require.Regexp(t, code, r.String())
		require.Regexp(t, meaning, r.Meaning(), r.String())
		require.Regexp(t, remedy, r.Remedy(), r.String())
		require.NotContains(t, seen, r.String(), "two reasons with one code")
		seen[r.String()] = r
	}
}

func TestUnknownReasonIsNamedByItsNumber(t *testing.T) {
	r := Reason(200)
	require.Equal(t, "reason(200)", r.String())
	require.Equal(t, Other.Meaning(), r.Meaning())
	require.Equal(t, Other.Remedy(), r.Remedy())
}
