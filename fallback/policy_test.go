package fallback

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPolicyFromTheEnvironment(t *testing.T) {
	for _, test := range []struct {
		name string
		env  map[string]string
		want Policy
	}{
		{"nothing set", nil, Policy{}},
		{"all defaults", map[string]string{"RNET_TRANSPORT": "auto", "RNET_PROFILE": "balanced", "RNET_LOG": "none"}, Policy{}},
		{"soft", map[string]string{"RNET_TRANSPORT": "soft"}, Policy{Transport: Soft}},
		{"rdma", map[string]string{"RNET_TRANSPORT": "rdma"}, Policy{Transport: RDMA}},
		{"tcp", map[string]string{"RNET_TRANSPORT": "tcp"}, Policy{Transport: TCP}},
		{"latency", map[string]string{"RNET_PROFILE": "latency"}, Policy{Profile: Latency}},
		{"efficient", map[string]string{"RNET_PROFILE": "efficient"}, Policy{Profile: Efficient}},
		{"device", map[string]string{"RNET_DEVICE": "rxe0"}, Policy{Device: Device{Name: "rxe0"}}},
		{"device and port", map[string]string{"RNET_DEVICE": "mlx5_0/2"}, Policy{Device: Device{"mlx5_0", 2}}},
		{"directory", map[string]string{"RNET_DIR": "/run/shop"}, Policy{Dir: "/run/shop"}},
		{"no directory", map[string]string{"RNET_DIR": "none"}, Policy{Dir: NoDir}},
		{"statistics on", map[string]string{"RNET_STATS": "on"}, Policy{}},
		{"statistics off", map[string]string{"RNET_STATS": "off"}, Policy{NoStats: true}},
		{"debug", map[string]string{"RNET_LOG": "debug"}, Policy{Debug: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := FromEnv(func(name string) string { return test.env[name] })
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

func TestBadVariableIsNamedWithWhatIsAllowed(t *testing.T) {
	env := map[string]string{
		"RNET_TRANSPORT": "TCP", "RNET_PROFILE": "fast", "RNET_LOG": "1", "RNET_DEVICE": "mlx5_0:2", "RNET_STATS": "no",
		"RNET_DIR": "run/shop", "RNET_KEY_FILE": "key",
	}
	_, err := FromEnv(func(name string) string { return env[name] })
	require.EqualError(t, err, `fallback: RNET_TRANSPORT: unknown transport "TCP", want one of ["auto" "soft" "rdma" "tcp"]
fallback: RNET_PROFILE: unknown profile "fast", want one of ["balanced" "latency" "efficient"]
fallback: RNET_LOG: unknown level "1", want one of ["none" "debug"]
fallback: RNET_DEVICE: device "mlx5_0:2", want a name, or a name and a port from 1 to 255: mlx5_0/2
fallback: RNET_STATS: unknown switch "no", want one of ["on" "off"]
fallback: RNET_DIR: directory "run/shop", want an absolute path, or "none"
fallback: RNET_KEY_FILE: file "key", want an absolute path`)
}

func TestGoodVariablesCountBesideABadOne(t *testing.T) {
	env := map[string]string{"RNET_TRANSPORT": "tcp", "RNET_PROFILE": "fast", "RNET_LOG": "debug"}
	policy, err := FromEnv(func(name string) string { return env[name] })
	require.ErrorContains(t, err, "RNET_PROFILE")
	require.Equal(t, Policy{Transport: TCP, Debug: true}, policy)
}

func TestNamesAreParsedBack(t *testing.T) {
	for transport := range Transport(wishCount) {
		got, err := ParseTransport(transport.String())
		require.NoError(t, err)
		require.Equal(t, transport, got)
	}
	for profile := range Profile(profileCount) {
		got, err := ParseProfile(profile.String())
		require.NoError(t, err)
		require.Equal(t, profile, got)
	}
	_, err := ParseTransport(Unix.String())
	require.Error(t, err)
	require.Equal(t, "transport(9)", Transport(9).String())
	require.Equal(t, "profile(9)", Profile(9).String())
}
