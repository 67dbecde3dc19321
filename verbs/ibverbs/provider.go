package ibverbs

// ProviderName is what [verbs.DeviceInfo] calls this provider.
const ProviderName = "ibverbs"
