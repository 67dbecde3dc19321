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
	Process *usage `json:"process,omitempty"` // what this process has of it, in its own group
}

// usage is what a pool counts.
type usage struct {
	Handles int `json:"hcaHandle"`
	Objects int `json:"hcaObject"`
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
	var pool verbs.Pool // its devices stay open until all is known: the cgroup counts them too
	kernel, err := rdmahost.Describe()
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	for i := range kernel {
		d, closes := kernelDevice(&kernel[i], &pool)
		defer closes()
		r.Devices = append(r.Devices, d)
	}
	others, err := verbs.Devices()
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	for _, info := range others {
		if info.Provider != uverbs.ProviderName {
			d := describe(info)
			defer d.open(&pool)()
			r.Devices = append(r.Devices, d)
		}
	}
	l, err := rdmahost.ReadLimits()
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		r.Problems = append(r.Problems, err.Error())
	}
	r.Limits = limitsOf(&l, pool.DeviceUsage())
	return r
}

// limitsOf adds to the first group, which is that of this process, what it has.
func limitsOf(l *rdmahost.Limits, here map[string]verbs.Usage) limits {
	r := limits{
		Memlock:   memlock{limit(l.Memlock.Soft), limit(l.Memlock.Hard), l.Memlock.Pinned, l.Memlock.Exempt},
		OpenFiles: limit(l.OpenFiles), Cgroups: []cgroup{}, Nodes: []node{},
		MissingModules: append([]string{}, l.MissingModules...),
	}
	for _, c := range l.Cgroups {
		g := cgroup{
			Group: c.Group, Device: c.Device,
			Handles: quota{limit(c.Handles.Max), c.Handles.Current}, Objects: quota{limit(c.Objects.Max), c.Objects.Current},
		}
		if c.Group == l.Cgroups[0].Group {
			g.Process = &usage{here[c.Device].Handles, here[c.Device].Objects}
		}
		r.Cgroups = append(r.Cgroups, g)
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
