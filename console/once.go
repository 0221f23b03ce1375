package console

import "sync"

// once remembers what recent operations answered, so that a double click, or a form that is sent
// again, does nothing twice. Operations of which that matters beyond this process are safe to repeat
// by themselves.
type once struct {
	mu    sync.Mutex
	order []string
	done  map[string]*answer
}

// answer is what an operation answered; it is complete when the mutex is free.
type answer struct {
	mu      sync.Mutex
	asked   bool
	outcome outcome
	err     error
}

func newOnce() *once { return &once{done: make(map[string]*answer)} }

// do runs f for the first request of that key, and answers the same to the others. What failed may be tried again.
func (o *once) do(key string, f func() (outcome, error)) (outcome, error) {
	a := o.answer(key)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.asked || a.err != nil {
		a.asked = true
		a.outcome, a.err = f()
	}
	return a.outcome, a.err
}

func (o *once) answer(key string) *answer {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a, ok := o.done[key]; ok {
		return a
	}
	a := &answer{}
	o.done[key] = a
	o.order = append(o.order, key)
	if len(o.order) > remembered {
		delete(o.done, o.order[0])
		o.order = o.order[1:]
	}
	return a
}
