package rcm

// DeviceWatch tells when a device of the kernel goes away, even if there is no
// connection on it. Drivers that cannot take a device from its users (rxe, siw)
// keep the administrator waiting until everybody has closed it, and nothing
// but the connection manager says that it is time to.
type DeviceWatch struct {
	gone  chan struct{} // closed when the device goes
	close func()
}

// Gone is closed when the device is being removed: close its verbs.Context.
// It is not closed by Close.
func (w *DeviceWatch) Gone() <-chan struct{} { return w.gone }

// Close ends the watch. Calls after the first do nothing.
func (w *DeviceWatch) Close() error {
	w.close()
	return nil
}
