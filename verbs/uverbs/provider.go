package uverbs

import "github.com/seed-b9b531af/ramjet/verbs/rdmahost"

// ProviderName is what [verbs.DeviceInfo] calls this provider.
const ProviderName = rdmahost.ProviderName

// Experimental reports whether the driver of this package for devices whose driver in the kernel has that
// name has never run on such a device, but on a model of it.
func Experimental(name string) bool { return name == "mlx5" }
