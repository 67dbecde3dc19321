package uverbs

import "sync"

// numbers are those of QPs that are being destroyed. The kernel may
// give such a number to the next QP while completions of the one before lie in
// its CQs, and completions name their QP by nothing else. So nobody may have
// that QP until the CQs are purged. The same holds for SRQs of XRC domains, which
// completions name too.
type numbers struct {
	mu      sync.Mutex
	changed sync.Cond           // of mu: numbers were taken out of leaving
	leaving map[uint32]struct{} // guarded by mu
}

// leave is called before the kernel destroys the QP, and left when its
// completions are purged, or when the QP has stayed.
func (n *numbers) leave(num uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leaving == nil {
		n.leaving = make(map[uint32]struct{})
	}
	n.leaving[num] = struct{}{}
}

func (n *numbers) left(num uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.leaving, num)
	n.changed.Broadcast()
}

// await returns when no completions of an earlier QP of this number are left.
func (n *numbers) await(num uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		if _, is := n.leaving[num]; !is {
			return
		}
		n.changed.Wait() // ends with left, which the Destroy that runs calls
	}
}
