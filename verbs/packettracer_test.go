package verbs

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPacketsOfIPv4AddressesHaveItsHeader(t *testing.T) {
	from := GID(netip.MustParseAddr("::ffff:192.168.0.1").As16())
	to := AddressVector{DGID: netip.MustParseAddr("::ffff:192.168.0.199").As16(), HopLimit: 64}
	require.Equal(t, "45000073000040004011b861c0a80001c0a800c7", hex.EncodeToString(ipHeader(from, &to, 0x73-20)),
		"the example of en.wikipedia.org/wiki/Internet_checksum")
}
