package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// someModules is a set as the RDMA modules are: several ways lead to ib_core.
func someModules() moduleSet {
	set := make(moduleSet)
	for name, info := range map[string]string{
		"ib_core":   "license=GPL\x00depends=\x00alias=rdma-netlink-subsys-3\x00",
		"ib_uverbs": "depends=ib_core\x00",
		"rdma_rxe":  "depends=ib_uverbs,ib_core,udp-tunnel\x00alias=rdma-link-rxe\x00alias=x\x00",
		"udp_tunnel": "name=udp_tunnel\x00depends=\x00" +
			"parm=x:a text with depends=nothing\x00",
	} {
		m := module{name: name, file: name + ".ko"}
		m.readInfo(info)
		set[name] = m
	}
	return set
}

func TestModulesComeAfterWhatTheyNeed(t *testing.T) {
	order, err := someModules().closure("udp_tunnel", "rdma_rxe", "ib_core")
	require.NoError(t, err)
	require.Equal(t, []string{"udp_tunnel", "ib_core", "ib_uverbs", "rdma_rxe"}, order)
}

func TestMissingModuleIsAnError(t *testing.T) {
	set := someModules()
	_, err := set.closure("siw")
	require.ErrorContains(t, err, "siw")
	delete(set, "ib_core")
	_, err = set.closure("rdma_rxe")
	require.ErrorContains(t, err, "ib_core")
}

func TestModulesThatNeedEachOtherAreAnError(t *testing.T) {
	set := someModules()
	set["ib_core"] = module{name: "ib_core", depends: []string{"rdma_rxe"}}
	_, err := set.closure("rdma_rxe")
	require.ErrorContains(t, err, "depend on each other")
}

func TestModprobeReadsWhatIsWritten(t *testing.T) {
	deps, err := someModules().depFile()
	require.NoError(t, err)
	require.Equal(t, "ib_core.ko:\nib_uverbs.ko: ib_core.ko\n"+
		"rdma_rxe.ko: udp_tunnel.ko ib_uverbs.ko ib_core.ko\nudp_tunnel.ko:\n", deps)
	require.Equal(t, "alias rdma-netlink-subsys-3 ib_core\nalias rdma-link-rxe rdma_rxe\nalias x rdma_rxe\n",
		someModules().aliasFile())
}

func TestModuleNamesAreTheKernels(t *testing.T) {
	for file, want := range map[string]string{
		"kernel/drivers/virtio/virtio_pci.ko": "virtio_pci",
		"/lib/modules/crc32c-intel.ko.xz":     "crc32c_intel",
		"siw":                                 "siw",
	} {
		require.Equal(t, want, moduleName(file))
	}
}

func TestFileThatIsNoModuleIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.ko")
	require.NoError(t, os.WriteFile(file, []byte("no ELF file"), 0o644))
	_, err := readModule(file)
	require.ErrorContains(t, err, file)
}
