package uverbs

import "github.com/seed-b9b531af/ramjet/verbs/rdmahost"

// ProviderName is what [verbs.DeviceInfo] calls this provider.
const ProviderName = rdmahost.ProviderName
