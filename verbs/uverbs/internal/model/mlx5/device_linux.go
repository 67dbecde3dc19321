//go:build amd64 || arm64

package mlx5

import (
	"maps"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A Config says what a device is.
type Config struct {
	Link fabric.Link // InfiniBand if it is 0
	// StaticUARs makes the kernel one that knows no other UARs than those of a context, as
	// before 5.7.
	StaticUARs bool
	// NoAtomics takes atomic operations away: QPs cannot let them in either.
	NoAtomics bool
	// CQEVersion0 makes it a device whose CQEs name no user indices, as the first
	// ones that there were.
	CQEVersion0 bool
	// NoBlueFlame makes it a device whose registers are for doorbells alone, as those of some
	// virtual functions, or the pages of a machine that cannot combine stores to them.
	NoBlueFlame bool
	// DMABuf has DMA buffers looked at, as a kernel that pages on demand does. Then the model
	// has to refuse them, for it cannot reach their memory.
	DMABuf bool
}

const driverID = 1 // RDMA_DRIVER_MLX5

// A Device is a ConnectX with one port.
type Device struct {
	*fabric.Port
	config   Config
	contexts []*ucontext
	domains  map[[2]uint64]*domain // of XRC, by their files
	memory   [memoryPages]bool     // which pages of its memory are given away
}

// NewDevice adds a device to a fabric.
func (c Config) NewDevice(f *fabric.Fabric) fabric.Device { return c.newDevice(f) }

func (c Config) newDevice(f *fabric.Fabric) *Device {
	d := &Device{config: c, domains: map[[2]uint64]*domain{}}
	f.NewPort(fabric.Config{Link: c.Link, NoAtomics: c.NoAtomics, Vendor: [3]byte{0x00, 0x02, 0xc9}}, func(p *fabric.Port) fabric.Hardware {
		d.Port = p
		return d
	})
	return d
}

// Host returns a machine that has the device as uverbs0.
func (d *Device) Host() *frame.Host {
	const name, device = "mlx5_0", "infiniband/mlx5_0/"
	host := d.Port.Host(name, frame.Node{Pages: nodePages, Driver: driverID, Methods: attributesOf(methods, d.config.StaticUARs), Open: d.open})
	maps.Copy(host.Sysfs, map[string]string{
		"infiniband_verbs/uverbs0/abi_version": "1",
		device + "hca_type":                    "MT4119",
		device + "fw_ver":                      "16.35.1000",
		device + "device/modalias":             "pci:v000015B3d00001017sv000015B3sd00000007bc02sc00i00",
	})
	host.Links = map[string]string{device + "device/driver": "../../../../bus/pci/drivers/mlx5_core"}
	return host
}

// Look looks at the registers of all programs, and at queues that have none.
func (d *Device) Look(now time.Time) bool {
	f, work := d.Fabric(), false
	d.tick()
	for _, c := range d.contexts {
		if !f.Late() && c.takeDoorbells() {
			work = true
			f.Counted.Doorbells++
			c.readRecords()
		}
		c.flushErrored(now)
		for _, q := range c.cqs {
			work = q.sendOverdue(now) || work
			if len(q.held) > 0 && !f.Late() {
				q.release()
				work = true
			}
		}
	}
	return work
}

// Event tells all programs.
func (d *Device) Event(kind uint32, element uint64) {
	for _, c := range d.contexts {
		c.event(kind, element)
	}
}

// Ended ends the completion channels of all programs and the clock that they see, and puts zeros
// in the place of the memory of the device that they have mapped (core/uverbs_main.c,
// uverbs_user_mmap_disassociate; rdma_umap_fault).
func (d *Device) Ended() {
	d.stopClock()
	for _, c := range d.contexts {
		clear(c.pages[mmapMemory<<8*pageSize:][:memoryPages*pageSize])
		for _, q := range c.cqs {
			if q.channel != nil {
				q.channel.End()
			}
		}
	}
}

// cqeVersion is that of CQEs with the user's indices, if the device has them.
func (d *Device) cqeVersion() byte {
	if d.config.CQEVersion0 {
		return 0
	}
	return 1
}

const deviceAttributes = 176 // bytes of struct ib_uverbs_query_device_resp

func (c *ucontext) attributes() []byte {
	d := c.device
	b := make([]byte, deviceAttributes)
	put := func(at int, v uint32) { le.PutUint32(b[at:], v) }
	le.PutUint64(b, 16<<32|35<<16|1000) // firmware
	be.PutUint64(b[8:], d.GUID)
	be.PutUint64(b[16:], d.GUID)
	le.PutUint64(b[24:], 1<<40)      // max_mr_size
	le.PutUint64(b[32:], 0xfffff000) // page sizes
	put(40, 0x2c9)                   // vendor
	put(44, 0x1017)                  // ConnectX-5
	put(52, maxQP)
	put(56, maxWR)
	put(60, 1<<17|1<<20|1<<24) // windows of type 1 and 2B, XRC: main.c, mlx5_ib_query_device
	put(64, maxSGE)
	put(68, maxSGE)
	put(72, 1<<16) // CQs
	put(76, maxCQE)
	put(80, 1<<16) // MRs
	put(84, 1<<16) // PDs
	put(88, maxReads)
	put(96, maxReads*maxQP)
	put(100, maxReads)
	if !d.NoAtomics {
		put(108, 1) // among the device's QPs: main.c, get_atomic_caps
	}
	put(120, 1<<16) // windows
	put(132, fabric.MaxGroups)
	put(136, fabric.MaxGroupsOfQP)
	put(140, fabric.MaxGroups*fabric.MaxGroupsOfQP)
	put(144, 1<<20) // AHs
	put(156, 1<<16) // SRQs
	put(160, maxSRQWR)
	put(164, maxSGE)
	le.PutUint16(b[168:], 1) // P_Keys
	b[170], b[171] = 16, 1   // local_ca_ack_delay, ports
	return b
}

func (c *ucontext) queryDevice(r *frame.Request) unix.Errno { return r.Answer(c.attributes(), nil) }

// queryDeviceEx answers with struct ib_uverbs_ex_query_device_resp, whose other fields are 0.
func (c *ucontext) queryDeviceEx(r *frame.Request) unix.Errno {
	const size = 304
	if len(r.Core) < 8 {
		return unix.ENOSPC // core/uverbs_main.c, verify_hdr
	}
	if le.Uint64(r.Core) != 0 {
		return unix.EINVAL // uverbs_cmd.c, ib_uverbs_ex_query_device: comp_mask, reserved
	}
	b := append(c.attributes(), make([]byte, size-deviceAttributes)...)
	le.PutUint32(b[deviceAttributes+4:], size)
	// On-demand paging: odp.c, internal_fill_odp_caps.
	const supported, implicit = 1, 2
	const send, recv, write, read, atomic, srqRecv = 1, 2, 4, 8, 16, 32
	le.PutUint64(b[184:], supported|implicit)
	le.PutUint32(b[192:], send|recv|write|read|atomic|srqRecv) // RC
	le.PutUint32(b[200:], send)                                // UD; UC has none
	le.PutUint64(b[208:], timestampMask)
	le.PutUint64(b[216:], clockKHz)
	le.PutUint16(b[280:], maxModerationCount) // main.c, mlx5_ib_query_device
	le.PutUint16(b[282:], maxModerationPeriod)
	le.PutUint64(b[288:], memoryPages*pageSize)
	le.PutUint32(b[296:], send|write|read|atomic|srqRecv) // XRC
	return r.Answer(b, nil)
}

// queryPort is uverbs_cmd.c, ib_uverbs_query_port.
func (c *ucontext) queryPort(r *frame.Request) unix.Errno {
	if r.Core[8] != 1 {
		return unix.EINVAL // core/device.c, ib_query_port: rdma_is_port_valid
	}
	return r.Answer(c.device.Query(), nil)
}
