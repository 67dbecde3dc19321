package verbs

// Flows is how many QPs a packet tracer knows.
func (t *Tracer) Flows() int {
	t.packets.mu.Lock()
	defer t.packets.mu.Unlock()
	return len(t.packets.flows)
}
