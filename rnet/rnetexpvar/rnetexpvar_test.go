package rnetexpvar

import (
	"encoding/json"
	"expvar"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet"
)

func TestTheVariableIsTheStatistics(t *testing.T) {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	c, err := rnet.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer c.Close()

	var told rnet.Stats
	require.NoError(t, json.Unmarshal([]byte(expvar.Get("rnet").String()), &told))
	now := rnet.ReadStats()
	require.Equal(t, now.Dials, told.Dials)
	require.Len(t, told.Sessions, len(now.Sessions))
	for i := range told.Sessions {
		require.Equal(t, now.Sessions[i].RemoteAddr, told.Sessions[i].RemoteAddr)
	}
	for _, l := range told.Listeners {
		require.Equal(t, ln.Addr().String(), l.Addr.String())
	}
}
