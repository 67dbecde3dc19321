//go:build !linux || (!amd64 && !arm64)

package ibverbs

import "github.com/seed-b9b531af/ramjet/verbs"

func init() { verbs.Register(provider{}) }

// provider has no devices here.
type provider struct{}

func (provider) Name() string { return ProviderName }

func (provider) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }

func (provider) Open(string) (verbs.ContextDriver, error) { return nil, verbs.ErrNoDevice }
