package rdmahost

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestTheAddressesOfTheHostAreThoseOfItsInterfaces(t *testing.T) {
	interfaces, err := net.Interfaces()
	require.NoError(t, err)
	var want []netip.Addr
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		require.NoError(t, err)
		for _, a := range addrs {
			ip, ok := netip.AddrFromSlice(a.(*net.IPNet).IP)
			require.True(t, ok)
			ip = ip.Unmap()
			if ip.Is6() && ip.IsLinkLocalUnicast() {
				ip = ip.WithZone(i.Name)
			}
			if !ip.IsLoopback() {
				want = append(want, ip)
			}
		}
	}
	got, err := Addrs()
	require.NoError(t, err)
	slices.SortFunc(want, netip.Addr.Compare)
	slices.SortFunc(got, netip.Addr.Compare)
	require.Equal(t, want, got)
}

// addressMessage is a message of route netlink about an address of interface 2.
func addressMessage(typ uint16, attrs ...[]byte) []byte {
	body := make([]byte, unix.SizeofIfAddrmsg)
	body[4] = 2
	return message(typ, unix.NLM_F_MULTI, 0, append(body, bytes.Join(attrs, nil)...))
}

func stringAttr(typ uint16, value string) []byte { return appendAttr(nil, typ, []byte(value)) }

func TestAddressesAreReadFromRouteNetlink(t *testing.T) {
	attr := func(typ uint16, ip string) []byte {
		return stringAttr(typ, string(netip.MustParseAddr(ip).AsSlice()))
	}
	names := map[uint32]string{2: "eth0"}
	for _, c := range []struct {
		name    string
		message []byte
		want    string // empty for none
	}{
		{"ours and the other's", addressMessage(unix.RTM_NEWADDR, attr(unix.IFA_ADDRESS, "10.0.0.2"), attr(unix.IFA_LOCAL, "10.0.0.1")), "10.0.0.1"},
		{"the other way round", addressMessage(unix.RTM_NEWADDR, attr(unix.IFA_LOCAL, "10.0.0.1"), attr(unix.IFA_ADDRESS, "10.0.0.2")), "10.0.0.1"},
		{"one for both", addressMessage(unix.RTM_NEWADDR, attr(unix.IFA_ADDRESS, "fd00::1")), "fd00::1"},
		{"link-local", addressMessage(unix.RTM_NEWADDR, attr(unix.IFA_ADDRESS, "fe80::1")), "fe80::1%eth0"},
		{"mapped", addressMessage(unix.RTM_NEWADDR, attr(unix.IFA_ADDRESS, "::ffff:10.0.0.1")), "10.0.0.1"},
		{"loopback", addressMessage(unix.RTM_NEWADDR, attr(unix.IFA_LOCAL, "127.0.0.1")), ""},
		{"no address", addressMessage(unix.RTM_NEWADDR), ""},
		{"of five bytes", addressMessage(unix.RTM_NEWADDR, stringAttr(unix.IFA_LOCAL, "12345")), ""},
		{"gone", addressMessage(unix.RTM_DELADDR, attr(unix.IFA_LOCAL, "10.0.0.1")), ""},
		{"too short", message(unix.RTM_NEWADDR, 0, 0, []byte{2, 0, 0, 0}), ""},
		{"the end", message(unix.NLMSG_DONE, 0, 0, make([]byte, 4)), ""},
		{"nothing", nil, ""},
	} {
		var want []netip.Addr
		if c.want != "" {
			want = []netip.Addr{netip.MustParseAddr(c.want)}
		}
		got, err := parseAddrs(c.message, names)
		require.NoError(t, err, c.name)
		require.Equal(t, want, got, c.name)
	}
	bad := addressMessage(unix.RTM_NEWADDR, attr(unix.IFA_LOCAL, "10.0.0.1"))
	binary.NativeEndian.PutUint16(bad[unix.NLMSG_HDRLEN+unix.SizeofIfAddrmsg:], 200)
	_, err := parseAddrs(bad, names)
	require.ErrorIs(t, err, errNetlink, "an attribute that is longer than its message")
}

// FuzzAddresses reads any answer of route netlink: what comes out are addresses
// that a listener may stand at.
func FuzzAddresses(f *testing.F) {
	ip4 := addressMessage(unix.RTM_NEWADDR, stringAttr(unix.IFA_ADDRESS, "\x0a\x00\x00\x02"), stringAttr(unix.IFA_LOCAL, "\x0a\x00\x00\x01"))
	ip6 := addressMessage(unix.RTM_NEWADDR, stringAttr(unix.IFA_ADDRESS, "\xfe\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"))
	f.Add(ip4)
	f.Add(append(ip6, ip4...))
	f.Add(append(ip4, message(unix.NLMSG_DONE, 0, 0, make([]byte, 4))...))
	f.Add(message(unix.NLMSG_ERROR, 0, 0, make([]byte, 20)))
	f.Add(addressMessage(unix.RTM_NEWADDR, stringAttr(unix.IFA_LOCAL, "12345"))[:30])
	bare := addressMessage(unix.RTM_NEWADDR, stringAttr(unix.IFA_LOCAL, "123"))
	binary.NativeEndian.PutUint32(bare, uint32(len(bare)-1)) // its last attribute is not padded
	f.Add(bare)
	f.Fuzz(func(t *testing.T, answer []byte) {
		list, err := parseAddrs(answer, map[uint32]string{2: "eth0"})
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(list), len(answer)/unix.NLMSG_HDRLEN)
		for _, ip := range list {
			require.True(t, ip.IsValid() && !ip.IsLoopback() && !ip.Is4In6(), "%v", ip)
		}
	})
}
