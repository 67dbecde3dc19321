package wait

import (
	"fmt"
	"strings"
)

// step is something that an actor of the model can do.
type step struct {
	name string
	do   func(w *world)
}

// explore visits every state that can be reached from w, depth first. It returns
// how many there are, and the first path to a final state in which somebody waits
// in vain, or that leads around in a circle for ever.
func explore(w world) (states int, violation string) {
	onPath := make(map[world]bool) // known states; true while on the path
	var path []string
	var visit func(w *world) string
	visit = func(w *world) string {
		key := *w
		if around, known := onPath[key]; around {
			return fmt.Sprintf("never comes to rest:\n  %s", strings.Join(path, "\n  "))
		} else if known {
			return ""
		}
		onPath[key] = true
		defer func() { onPath[key] = false }()
		steps, err := w.steps(), w.valid()
		if err == nil && len(steps) == 0 {
			err = w.final()
		}
		if err != nil {
			return fmt.Sprintf("%v:\n  %s", err, strings.Join(path, "\n  "))
		}
		for _, s := range steps {
			next := *w
			path = append(path, s.name)
			s.do(&next)
			if v := visit(&next); v != "" {
				return v
			}
			path = path[:len(path)-1]
		}
		return ""
	}
	violation = visit(&w)
	return len(onPath), violation
}
