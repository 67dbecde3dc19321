package uverbs

import "sync"

// qpNumbers are the numbers of QPs that are being destroyed. The kernel may
// give such a number to the next QP while completions of the one before lie in
// its CQs, and completions name their QP by nothing else. So nobody may have
// that QP until the CQs are purged.
type qpNumbers struct {
	mu      sync.Mutex
	changed sync.Cond           // of mu: numbers were taken out of leaving
	leaving map[uint32]struct{} // guarded by mu
}

// leave is called before the kernel destroys the QP, and left when its
// completions are purged, or when the QP has stayed.
func (n *qpNumbers) leave(num uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leaving == nil {
		n.leaving = make(map[uint32]struct{})
	}
	n.leaving[num] = struct{}{}
}

func (n *qpNumbers) left(num uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.leaving, num)
	n.changed.Broadcast()
}

// await returns when no completions of an earlier QP of this number are left.
func (n *qpNumbers) await(num uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		if _, is := n.leaving[num]; !is {
			return
		}
		n.changed.Wait() // ends with left, which the Destroy that runs calls
	}
}
