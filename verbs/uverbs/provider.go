package uverbs

// ProviderName is what [verbs.DeviceInfo] calls this provider.
const ProviderName = "uverbs"
