package rdmahost

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// host reads the pseudo file systems of a machine. Paths have no leading
// slash.
type host struct{ fs.FS }

var thisHost = host{os.DirFS("/")}

const (
	classInfiniband = "sys/class/infiniband"
	classVerbs      = "sys/class/infiniband_verbs"
	// userVerbsABI is IB_USER_VERBS_ABI_VERSION of rdma/ib_user_verbs.h.
	userVerbsABI = "6"
	// maxText bounds what is read of one file. sysfs files have at most a
	// page; /proc/self/mountinfo may be longer.
	maxText = 1 << 20
)

// text reads a file without the white space around its content.
func (h host) text(elem ...string) (string, error) {
	f, err := h.Open(path.Join(elem...))
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxText))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// textOr reads a file, or returns what it is taken for if it cannot be read.
func (h host) textOr(missing string, elem ...string) string {
	if s, err := h.text(elem...); err == nil {
		return s
	}
	return missing
}

// names lists a directory; one that is missing is empty.
func (h host) names(elem ...string) ([]string, error) {
	list, err := fs.ReadDir(h.FS, path.Join(elem...))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name()
	}
	return names, err
}

// devices lists the RDMA devices that sysfs shows.
func (h host) devices() ([]Device, error) {
	names, err := h.names(classInfiniband)
	if err != nil {
		return nil, err
	}
	var list []Device
	for _, name := range names {
		list = append(list, Device{Name: name, Index: -1})
	}
	return list, nil
}

// complete fills in from sysfs what netlink did not say.
func (h host) complete(d *Device) {
	dir := path.Join(classInfiniband, d.Name)
	if d.NodeType == 0 {
		d.NodeType = nodeType(h.textOr("", dir, "node_type"))
		d.Transport = transportOf("", d.NodeType, h.textOr("", dir, "ports/1/link_layer"))
	}
	if d.NodeGUID == 0 {
		d.NodeGUID, _ = parseGUID(h.textOr("", dir, "node_guid"))
	}
	if d.Firmware == "" {
		d.Firmware = h.textOr("", dir, "fw_ver")
	}
	if d.Ports == 0 {
		ports, _ := h.names(dir, "ports")
		d.Ports = len(ports)
	}
	if d.Node == "" {
		h.findUverbs(d)
	}
	if d.DriverID == driverUnknown {
		d.DriverID, d.Driver = h.guessDriver(d.Name)
	}
	if d.Driver == "" {
		d.Driver = d.DriverID.String()
	}
}

// findUverbs looks for the character device that serves d.
func (h host) findUverbs(d *Device) {
	if h.textOr("", classVerbs, "abi_version") != userVerbsABI {
		return
	}
	nodes, _ := h.names(classVerbs)
	for _, node := range nodes {
		if h.textOr("", classVerbs, node, "ibdev") != d.Name {
			continue
		}
		major, minor, err := parseDevNumber(h.textOr("", classVerbs, node, "dev"))
		if err != nil {
			continue
		}
		abi, _ := strconv.ParseUint(h.textOr("", classVerbs, node, "abi_version"), 10, 32)
		d.Node, d.Major, d.Minor, d.ABI = node, major, minor, uint32(abi)
		return
	}
}

// rdmaOfNetwork are the drivers whose devices belong to the PCI function of a network driver of
// another name: what they make dev.parent of their devices (drivers/infiniband/hw).
var rdmaOfNetwork = map[string]string{
	"ice": "irdma", "i40e": "irdma", "bnxt_en": "bnxt_re", "hns3": "hns", "qede": "qedr", "be2net": "ocrdma",
}

// guessDriver says which driver a device probably has, where the kernel gave
// no driver id. The software drivers are known by what they write into
// node_desc: their parent in sysfs is the network card's driver. Other
// devices have a parent whose driver it is, or which is the function of the network
// driver beside it; the name is the last resort.
func (h host) guessDriver(name string) (DriverID, string) {
	dir := path.Join(classInfiniband, name)
	switch desc := h.textOr("", dir, "node_desc"); {
	case desc == "rxe":
		return DriverRXE, DriverRXE.String()
	case strings.HasPrefix(desc, "Software iWARP"): // SIW_NODE_DESC_COMMON of rdma/siw-abi.h
		return DriverSIW, DriverSIW.String()
	}
	if link, err := fs.ReadLink(h.FS, path.Join(dir, "device/driver")); err == nil {
		module := path.Base(link)
		if beside, ok := rdmaOfNetwork[module]; ok {
			module = beside
		}
		if id := driverByName(module); id != driverUnknown {
			return id, id.String()
		}
		return driverUnknown, module
	}
	id := driverByName(strings.TrimRight(name, "0123456789"))
	return id, id.String()
}

// parseGUID reads "0200:5eff:fe00:0001".
func parseGUID(text string) (uint64, error) {
	groups := strings.Split(text, ":")
	if len(groups) != 4 {
		return 0, fmt.Errorf("GUID %q has not four groups", text)
	}
	var guid uint64
	for _, g := range groups {
		n, err := strconv.ParseUint(g, 16, 16)
		if err != nil {
			return 0, fmt.Errorf("GUID %q: %w", text, err)
		}
		guid = guid<<16 | n
	}
	return guid, nil
}

// isFileName reports whether name is one element of a path.
func isFileName(name string) bool {
	return fs.ValidPath(name) && name != "." && !strings.Contains(name, "/") && !strings.Contains(name, "\x00")
}
