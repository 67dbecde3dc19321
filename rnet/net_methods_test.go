package rnet

import (
	"context"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// namesake is a type of package net and ours of the same name.
type namesake struct {
	net, ours reflect.Type
	without   []string // fields that ours has not
}

// The deprecated fields are left out: DialContext has a context, and a dial may always try both
// families.
var namesakes = []namesake{
	{reflect.TypeFor[net.Dialer](), reflect.TypeFor[Dialer](), []string{"DualStack", "Cancel"}},
	{reflect.TypeFor[net.ListenConfig](), reflect.TypeFor[ListenConfig](), nil},
}

func TestNamesakesHaveTheFieldsAndMethodsOfPackageNet(t *testing.T) {
	for _, n := range namesakes {
		for _, field := range reflect.VisibleFields(n.net) {
			ours, ok := n.ours.FieldByName(field.Name)
			switch {
			case !field.IsExported():
			case slices.Contains(n.without, field.Name):
				require.False(t, ok, "%v.%s is said to be missing", n.ours, field.Name)
			default:
				require.True(t, ok, "%v.%s", n.ours, field.Name)
				require.Equal(t, field.Type, ours.Type, "%v.%s", n.ours, field.Name)
			}
		}
		theirs := reflect.PointerTo(n.net)
		for i := range theirs.NumMethod() {
			want := theirs.Method(i)
			got, ok := reflect.PointerTo(n.ours).MethodByName(want.Name)
			require.True(t, ok, "%v.%s", n.ours, want.Name)
			require.Equal(t, signature(want), signature(got), "%v.%s", n.ours, want.Name)
		}
	}
}

// signature is the type of a method without its receiver.
func signature(m reflect.Method) string {
	var in, out []reflect.Type
	for i := 1; i < m.Type.NumIn(); i++ {
		in = append(in, m.Type.In(i))
	}
	for i := range m.Type.NumOut() {
		out = append(out, m.Type.Out(i))
	}
	return reflect.FuncOf(in, out, m.Type.IsVariadic()).String()
}

// Each field that package net has too is handed on to it.
func TestFieldsReachPackageNet(t *testing.T) {
	fill := func(v reflect.Value) reflect.Value { // sets all fields that package net has too
		for _, n := range namesakes {
			for _, field := range reflect.VisibleFields(n.net) {
				if n.ours == v.Type() && field.IsExported() && !slices.Contains(n.without, field.Name) {
					v.FieldByName(field.Name).Set(sample(t, field))
				}
			}
		}
		return v
	}
	var d Dialer
	fill(reflect.ValueOf(&d).Elem())
	var lc ListenConfig
	fill(reflect.ValueOf(&lc).Elem())
	config := lc.socketConfig()
	for _, made := range []reflect.Value{reflect.ValueOf(d.socketDialer()).Elem(), reflect.ValueOf(&config).Elem()} {
		for _, field := range reflect.VisibleFields(made.Type()) {
			if field.IsExported() && !slices.Contains(namesakes[0].without, field.Name) {
				require.False(t, made.FieldByIndex(field.Index).IsZero(), "%v.%s", made.Type(), field.Name)
			}
		}
	}
}

// sample is a value of a field that is not zero.
func sample(t *testing.T, field reflect.StructField) reflect.Value {
	t.Helper()
	for _, v := range []any{
		time.Second, time.Now(), net.KeepAliveConfig{Enable: true}, &net.Resolver{}, &net.TCPAddr{},
		func(string, string, syscall.RawConn) error { return nil },
		func(context.Context, string, string, syscall.RawConn) error { return nil },
	} {
		if reflect.TypeOf(v).AssignableTo(field.Type) {
			return reflect.ValueOf(v)
		}
	}
	t.Fatalf("no sample for the field %s of type %v", field.Name, field.Type)
	return reflect.Value{}
}

func TestMultipathTCPIsThatOfPackageNet(t *testing.T) {
	d := patient()
	var lc ListenConfig
	require.Equal(t, new(net.Dialer).MultipathTCP(), d.MultipathTCP())
	require.Equal(t, new(net.ListenConfig).MultipathTCP(), lc.MultipathTCP())
	for _, use := range []bool{true, false} {
		d.SetMultipathTCP(use)
		lc.SetMultipathTCP(use)
		require.Equal(t, use, d.MultipathTCP())
		require.Equal(t, use, lc.MultipathTCP())
		ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		c, err := d.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		if runtime.GOOS == "linux" {
			require.IsType(t, (*Conn)(nil), c)
		}
		c.Close()
		d.Transport = TCP
		c, err = d.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		c.Close()
		d.Transport = Auto
		require.NoError(t, ln.Close())
	}
}

func TestSocketsOfOneKindAreThoseOfPackageNet(t *testing.T) {
	var d Dialer
	ln, err := Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	tcp, err := d.DialTCP(t.Context(), "tcp", netip.AddrPort{}, addrPortOf(ln.Addr()))
	require.NoError(t, err)
	tcp.Close()
	pc, err := (&ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer pc.Close()
	udp, err := d.DialUDP(t.Context(), "udp", netip.AddrPort{}, pc.LocalAddr().(*net.UDPAddr).AddrPort())
	require.NoError(t, err)
	udp.Close()
	// for root
	if ip, err := d.DialIP(t.Context(), "ip4:icmp", netip.Addr{}, netip.MustParseAddr("127.0.0.1")); err == nil {
		ip.Close()
	}
	at := &net.UnixAddr{Name: t.TempDir() + "/s", Net: "unix"}
	unix, err := Listen("unix", at.Name)
	require.NoError(t, err)
	defer unix.Close()
	u, err := d.DialUnix(t.Context(), "unix", nil, at)
	require.NoError(t, err)
	u.Close()
}
