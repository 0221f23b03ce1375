package bus

import "github.com/bluecone-go/bluecone/internal/store"

// mayWait reports whether an earlier event of the aggregate may be unfinished for the consumer. A delivery of a fresh
// claim need not ask if nothing of its aggregate was open but what was claimed with it: then those before it have been
// in this very lane, and one that did not succeed has told those behind it.
func (ln *lane) mayWait(d *delivery) bool {
	if ln.c.cfg.Unordered {
		return false
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return d.mustAsk
}

// unfinished notes that deliveries have not succeeded: those behind them must ask whether they may run.
func (ln *lane) unfinished(ds []*delivery) {
	if ln.c.cfg.Unordered {
		return
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	keys := make(map[store.Aggregate]struct{}, len(ds))
	for _, d := range ds {
		key := d.aggregate()
		keys[key] = struct{}{}
		for _, mate := range ln.busy[key] {
			mate.mustAsk = mate.mustAsk || mate.aggregate() == key
		}
	}
	for _, d := range ln.queue {
		if _, ok := keys[d.aggregate()]; ok {
			d.mustAsk = true
		}
	}
}
