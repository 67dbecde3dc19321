package rdmahost

import (
	"encoding/binary"
	"fmt"
	"io/fs"
)

// Names lists the names of this host's RDMA devices in order, which takes less
// than [Devices]: one directory is read. A host without the RDMA subsystem has
// none, which is not an error.
func Names() ([]string, error) { return thisHost.names(classInfiniband) }

// NameByIndex returns the name of the device of this network namespace to which
// the kernel has given that number.
func NameByIndex(index uint32) (name string, err error) {
	s, err := dialNetlink()
	if err != nil {
		return "", err
	}
	defer s.close()
	err = s.request(nldevGet, 0, appendAttrUint32(nil, nldevDevIndex, index), func(attrs []byte) {
		if d, ok := parseDevice(attrs); ok {
			name = d.Name
		}
	})
	if err == nil && name == "" {
		err = errNetlink
	}
	if err != nil {
		return "", fmt.Errorf("netlink: name of RDMA device %d: %w", index, err)
	}
	return name, nil
}

// NameByGUID returns the name of the device with that node GUID. The error
// wraps fs.ErrNotExist if there is none.
func NameByGUID(guid [8]byte) (string, error) { return thisHost.nameByGUID(guid) }

func (h host) nameByGUID(guid [8]byte) (string, error) {
	names, err := h.names(classInfiniband)
	if err != nil {
		return "", fmt.Errorf("list RDMA devices: %w", err)
	}
	want := binary.BigEndian.Uint64(guid[:])
	for _, name := range names {
		// A device that has gone meanwhile is not the one.
		if got, err := parseGUID(h.textOr("", classInfiniband, name, "node_guid")); err == nil && got == want {
			return name, nil
		}
	}
	return "", fmt.Errorf("%w: no device with node GUID %016x in /%s", fs.ErrNotExist, want, classInfiniband)
}

// LoadConnectionManager asks the kernel for its connection manager, which makes
// it load the module rdma_ucm, and reports whether it is there now.
func LoadConnectionManager() (loaded bool) {
	s, err := dialNetlink()
	if err != nil {
		return false
	}
	defer s.close()
	err = s.request(nldevChardev, 0, appendAttr(nil, nldevChardevType, []byte("rdma_cm\x00")), func(b []byte) {
		for typ, val := range attrs(b) {
			loaded = loaded || typ == nldevChardevDev && len(val) > 0
		}
	})
	return err == nil && loaded
}
