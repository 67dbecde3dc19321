package verbs

// Flows is how many QPs a packet tracer knows.
func (t *Tracer) Flows() int {
	t.packets.mu.Lock()
	defer t.packets.mu.Unlock()
	return len(t.packets.flows)
}

// Tasks is how many tasks of requests a task tracer has that have not completed.
func (t *Tracer) Tasks() (n int) {
	t.tasks.mu.Lock()
	defer t.tasks.mu.Unlock()
	for _, list := range t.tasks.open {
		n += len(list)
	}
	return n
}

// Allows is what Modify decides of a transition.
func Allows(typ QPType, cur QPState, attr *QPAttr, mask QPAttrMask) bool {
	return findFault(typ, cur, attr, mask) == transitionFault{}
}
