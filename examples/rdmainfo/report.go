package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

// report is all that is known, and what -json prints. Sizes are in bytes.
type report struct {
	Devices   []device  `json:"devices"`
	Limits    limits    `json:"limits"`
	Problems  []string  `json:"problems"` // what could not be read
	Addresses []address `json:"addresses,omitempty"`
}

// limits are those of this process; another program may have others.
type limits struct {
	Memlock        memlock  `json:"memlock"`
	OpenFiles      limit    `json:"openFiles"`
	Cgroups        []cgroup `json:"cgroups"`
	Nodes          []node   `json:"nodes"`
	MissingModules []string `json:"missingModules"`
}

type memlock struct {
	Soft   limit  `json:"soft"`
	Hard   limit  `json:"hard"`
	Pinned uint64 `json:"pinned"`
	Exempt bool   `json:"exempt"` // CAP_IPC_LOCK: only siw looks at the limit
}

type cgroup struct {
	Group   string `json:"group"`
	Device  string `json:"device"`
	Handles quota  `json:"hcaHandle"`
	Objects quota  `json:"hcaObject"`
}

type quota struct {
	Max     limit  `json:"max"`
	Current uint64 `json:"current"`
}

type node struct {
	Path  string `json:"path"`
	Mode  string `json:"mode,omitempty"`
	Owner string `json:"owner,omitempty"`
	Group string `json:"group,omitempty"`
	Error string `json:"error,omitempty"` // why this process may not open it
}

// limit is a number, or rdmahost.NoLimit, which is null in JSON.
type limit uint64

// MarshalJSON writes null for what is not limited.
func (l limit) MarshalJSON() ([]byte, error) {
	if uint64(l) == rdmahost.NoLimit {
		return []byte("null"), nil
	}
	return json.Marshal(uint64(l))
}

// collect looks at everything.
func collect() report {
	r := report{Devices: []device{}, Problems: []string{}}
	l, err := rdmahost.ReadLimits()
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		r.Problems = append(r.Problems, err.Error())
	}
	r.Limits = limitsOf(&l)
	kernel, err := rdmahost.Describe()
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	for i := range kernel {
		r.Devices = append(r.Devices, kernelDevice(&kernel[i]))
	}
	others, err := verbs.Devices()
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	for _, info := range others {
		if info.Provider != uverbs.ProviderName {
			d := describe(info)
			d.open()
			r.Devices = append(r.Devices, d)
		}
	}
	return r
}

func limitsOf(l *rdmahost.Limits) limits {
	r := limits{
		Memlock:   memlock{limit(l.Memlock.Soft), limit(l.Memlock.Hard), l.Memlock.Pinned, l.Memlock.Exempt},
		OpenFiles: limit(l.OpenFiles), Cgroups: []cgroup{}, Nodes: []node{},
		MissingModules: append([]string{}, l.MissingModules...),
	}
	for _, c := range l.Cgroups {
		r.Cgroups = append(r.Cgroups, cgroup{
			Group: c.Group, Device: c.Device,
			Handles: quota{limit(c.Handles.Max), c.Handles.Current}, Objects: quota{limit(c.Objects.Max), c.Objects.Current},
		})
	}
	for _, n := range l.Nodes {
		entry := node{Path: n.Path, Owner: n.Owner, Group: n.Group}
		if n.Owner != "" {
			entry.Mode = fmt.Sprintf("%#o", n.Mode.Perm())
		}
		if n.Err != nil {
			entry.Error = n.Err.Error()
		}
		r.Nodes = append(r.Nodes, entry)
	}
	return r
}

// seconds rounds for people.
func seconds(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
