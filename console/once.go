package console

import (
	"crypto/sha256"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
)

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
	content string // what was asked for
	mu      sync.Mutex
	asked   bool
	outcome outcome
	err     error
}

func newOnce() *once { return &once{done: make(map[string]*answer)} }

// errOther means that somebody used the id of an operation for another one.
var errOther = errors.New("op is the id of an operation with other contents: load the page again, or choose a new id")

// do runs f for the first request of that key, and answers the same to the others, if they ask for the same. What failed
// may be tried again.
func (o *once) do(key, content string, f func() (outcome, error)) (outcome, error) {
	a := o.answer(key, content)
	if a.content != content {
		return outcome{}, &refusal{http.StatusConflict, "error.state", errOther}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.asked || a.err != nil {
		a.asked = true
		a.outcome, a.err = f()
	}
	return a.outcome, a.err
}

func (o *once) answer(key, content string) *answer {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a, ok := o.done[key]; ok {
		return a
	}
	a := &answer{content: content}
	o.done[key] = a
	o.order = append(o.order, key)
	if len(o.order) > remembered {
		delete(o.done, o.order[0])
		o.order = o.order[1:]
	}
	return a
}

// contentOf is what a form asks for, whatever page it is on and in which language. Only its hash is kept.
func contentOf(values url.Values) string {
	asked := make(url.Values, len(values))
	for name, v := range values {
		if !slices.Contains([]string{"op", "back", "lang"}, name) {
			asked[name] = v
		}
	}
	sum := sha256.Sum256([]byte(asked.Encode()))
	return string(sum[:])
}
