package verbs

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// listing is a provider that can only list: names, or the reason why not.
type listing struct {
	name    string
	devices []string
	err     error
}

func (l listing) Name() string { return l.name }

func (l listing) Devices() ([]DeviceInfo, error) {
	var list []DeviceInfo
	for _, d := range l.devices {
		list = append(list, DeviceInfo{Name: d, Provider: l.name})
	}
	return list, l.err
}

func (l listing) Open(string) (ContextDriver, error) { return nil, errors.New("cannot open") }

// onlyProviders replaces the registered providers until the test is over.
func onlyProviders(t *testing.T, list ...Provider) {
	providers.Lock()
	former := providers.byName
	providers.byName = nil
	providers.Unlock()
	t.Cleanup(func() {
		providers.Lock()
		providers.byName = former
		providers.Unlock()
	})
	for _, p := range list {
		Register(p)
	}
}

func deviceNames(list []DeviceInfo) []string {
	var names []string
	for _, d := range list {
		names = append(names, d.Provider+"/"+d.Name)
	}
	return names
}

func TestDevicesAreOrderedByProviderAndName(t *testing.T) {
	onlyProviders(t, listing{name: "z", devices: []string{"a0"}}, listing{name: "b", devices: []string{"y1", "y0"}})
	list, err := Devices()
	require.NoError(t, err)
	require.Equal(t, []string{"b/y0", "b/y1", "z/a0"}, deviceNames(list))
}

func TestAProviderThatCannotListHidesNoOther(t *testing.T) {
	broken := errors.New("sysfs is unreadable")
	onlyProviders(t, listing{name: "a", err: broken}, listing{name: "b", devices: []string{"dev0"}})
	list, err := Devices()
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "provider a")
	require.Equal(t, []string{"b/dev0"}, deviceNames(list))

	_, err = Open("dev0")
	require.ErrorContains(t, err, "verbs: open on dev0: cannot open")
	require.ErrorIs(t, err, broken, "the other one may have opened it")
	_, err = Open("dev1")
	require.ErrorIs(t, err, ErrNoDevice)
	require.ErrorIs(t, err, broken, "the device may be one that could not be listed")
}

func TestWithoutProvidersThereIsNoDevice(t *testing.T) {
	onlyProviders(t)
	list, err := Devices()
	require.NoError(t, err)
	require.Empty(t, list)
	_, err = Open("soft0")
	require.EqualError(t, err, "verbs: open on soft0: no such device (verbs.Devices lists what is there)")
}

func TestAProviderNameIsTakenOnce(t *testing.T) {
	onlyProviders(t, listing{name: "a"})
	require.Panics(t, func() { Register(listing{name: "a"}) })
}

// serving is a provider that has drivers for some of what it lists.
type serving struct {
	listing
	drives []string
	ctx    ContextDriver
}

func (s serving) Serves(d DeviceInfo) bool { return slices.Contains(s.drives, d.Name) }

func (s serving) Open(name string) (ContextDriver, error) {
	if s.ctx != nil && slices.Contains(s.drives, name) {
		return s.ctx, nil
	}
	return nil, errors.New(s.name + " cannot open")
}

// opened is a device that tells who has opened it.
type opened struct {
	ContextDriver
	by string
}

func (o opened) QueryDevice() (DeviceAttr, error) {
	return DeviceAttr{DeviceInfo: DeviceInfo{Provider: o.by}}, nil
}

func TestADeviceOfSeveralProvidersIsThereOnce(t *testing.T) {
	others := serving{listing{name: "others", devices: []string{"a0", "b0", "c0"}}, []string{"a0", "b0"}, opened{by: "others"}}
	ours := serving{listing{name: "uverbs", devices: []string{"a0", "b0", "c0"}}, []string{"a0"}, opened{by: "uverbs"}}
	onlyProviders(t, others, ours)
	opens := func() []string {
		var by []string
		for _, name := range []string{"a0", "b0"} {
			ctx, err := Open(name)
			require.NoError(t, err)
			by = append(by, ctx.Attr().Provider+"/"+name)
		}
		return by
	}
	list, err := Devices()
	require.NoError(t, err)
	require.Equal(t, []string{"uverbs/a0", "others/b0", "uverbs/c0"}, deviceNames(list))
	require.Equal(t, deviceNames(list)[:2], opens())
	_, err = Open("c0")
	require.EqualError(t, err, "verbs: open on c0: uverbs cannot open", "nobody serves it: that of the first")

	t.Setenv(ProvidersVar, "others,uverbs")
	list, err = Devices()
	require.NoError(t, err)
	require.Equal(t, []string{"others/a0", "others/b0", "others/c0"}, deviceNames(list))
	require.Equal(t, deviceNames(list)[:2], opens())
	_, err = Open("c0")
	require.EqualError(t, err, "verbs: open on c0: others cannot open")
}

// explaining is a provider that explains what fails on its devices.
type explaining struct{ listing }

func (p explaining) Explain(e *Error) (Limit, string) {
	if !slices.Contains(p.devices, e.Device) {
		return LimitUnknown, ""
	}
	return LimitCgroup, e.Op + " of " + p.name
}

func TestAnErrorIsExplainedByTheProviderOfItsDevice(t *testing.T) {
	onlyProviders(t, listing{name: "silent", devices: []string{"c0"}},
		explaining{listing{name: "ours", devices: []string{"a0"}}}, explaining{listing{name: "others", devices: []string{"b0"}}})
	for device, want := range map[string]string{"a0": "open of ours", "b0": "open of others", "c0": ""} {
		limit, remedy := (&Error{Op: "open", Device: device, Err: syscall.EAGAIN}).Explain()
		require.Equal(t, want, remedy)
		require.Equal(t, want != "", limit == LimitCgroup)
	}
}

// explainingAll is a provider that does not know the devices of others.
type explainingAll struct{ listing }

func (explainingAll) Explain(*Error) (Limit, string) { return LimitMemlock, "ulimit -l" }

func TestAnErrorOfADeviceIsNotExplainedByAnotherProvider(t *testing.T) {
	onlyProviders(t, listing{name: "silent", devices: []string{"c0"}}, explainingAll{listing{name: "all", devices: []string{"a0"}}})
	for device, want := range map[string]Limit{"a0": LimitMemlock, "c0": LimitUnknown, "": LimitMemlock, "gone": LimitMemlock} {
		limit, _ := (&Error{Op: "register MR", Device: device, Err: syscall.ENOMEM}).Explain()
		require.Equal(t, want, limit, "%q", device)
	}
}

func TestAProviderThatCannotOpenLetsTheNextOneTry(t *testing.T) {
	unable := serving{listing{name: "uverbs", devices: []string{"a0"}}, []string{"a0"}, nil}
	able := serving{listing{name: "others", devices: []string{"a0"}}, []string{"a0"}, opened{by: "others"}}
	onlyProviders(t, unable, able)
	list, err := Devices()
	require.NoError(t, err)
	require.Equal(t, []string{"uverbs/a0"}, deviceNames(list))
	ctx, err := Open("a0")
	require.NoError(t, err)
	require.Equal(t, "others", ctx.Attr().Provider)
}

// silent is a device that opens, and then has no more objects with which it could find out what it
// can do.
type silent struct{ ContextDriver }

func (silent) QueryDevice() (DeviceAttr, error) { return DeviceAttr{}, syscall.EAGAIN }

func (silent) Close() error { return nil }

func TestAnOpenThatFailsWithAQueryHasAHintToo(t *testing.T) {
	onlyProviders(t, serving{listing{name: "ours", devices: []string{"a0"}}, []string{"a0"}, silent{}})
	_, err := Open("a0")
	require.EqualError(t, err, "verbs: query device on a0: resource temporarily unavailable (raise rdma.max of the cgroup)")
}
