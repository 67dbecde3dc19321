package fallback

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDevicesAreParsedBack(t *testing.T) {
	for text, want := range map[string]Device{
		"":           {},
		"soft0":      {Name: "soft0"},
		"rxe0":       {Name: "rxe0"},
		"rxe0/1":     {"rxe0", 1},
		"mlx5_0/2":   {"mlx5_0", 2},
		"mlx5_0/255": {"mlx5_0", 255},
	} {
		got, err := ParseDevice(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		require.Equal(t, text, got.String())
	}
}

func TestBadDevicesAreRefused(t *testing.T) {
	for _, text := range []string{
		"/", "/1", "rxe0/", "rxe0/0", "rxe0/256", "rxe0/-1", "rxe0/+1", "rxe0/01", "rxe0/ 1", "rxe0/1 ", "rxe0/1/1", "rxe0/x", "rxe0//1", "../rxe0", "rxe0:1",
	} {
		_, err := ParseDevice(text)
		require.ErrorContains(t, err, `device "`+text+`", want a name, or a name and a port from 1 to 255`, text)
	}
}
