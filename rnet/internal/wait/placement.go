package wait

import "math/rand/v2"

// Placement has an end leave the CPU of its peer now and then. Two ends on one CPU have to
// sleep for each other, and whoever wakes the other does so on its own CPU: so they stay there,
// however many CPUs are idle. The zero value is ready. Its methods are not for several
// goroutines at once.
type Placement struct {
	stay  int // calls of Leave left before the next attempt
	stays int // bound of stay at the last attempt
}

// Leave is called when the end has found its peer on its CPU, and reports whether it has left
// it; the peer may have done so, too. Attempts that fail, because all other CPUs are busy, become
// rarer. Their times are random in part, so that the two ends do not move to the same CPU at
// once.
func (p *Placement) Leave() bool {
	if p.stay > 0 {
		p.stay--
		return false
	}
	p.stays = min(2*p.stays+2, maxStays)
	p.stay = p.stays/2 + rand.IntN(p.stays)
	return leaveCPU()
}

// Settle says that polling has gained: the two ends are where they should be.
func (p *Placement) Settle() { p.stays = 0 }

// maxStays bounds how many calls of Leave lie between two attempts: with 16 waits for each, a
// hundred thousand waits.
const maxStays = 4096
