package bus

// memory is which events, by outbox id, a lane has delivered: the last few thousand at least, and some
// hundred thousand if most events are for its consumer. SUCCESS is for ever, so that what is in here needs no
// asking. Without it every event beside a consumer that is paused, slow or failing had to ask about all
// that this one leaves open before it.
type memory struct {
	recent, older map[int64]uint64 // which of 64 ids in a row
}

// generation is how many rows of ids are recent before they become the older ones.
const generation = 4096

func (m *memory) add(id int64) {
	if m.recent == nil || len(m.recent) >= generation {
		m.older, m.recent = m.recent, make(map[int64]uint64)
	}
	m.recent[id/64] |= 1 << (id % 64)
}

func (m *memory) has(id int64) bool {
	return (m.recent[id/64]|m.older[id/64])&(1<<(id%64)) != 0
}

// mayWait reports whether an earlier event of the aggregate may be unfinished for the consumer.
func (ln *lane) mayWait(d *delivery) bool {
	if ln.c.cfg.Unordered {
		return false
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	for _, id := range d.before {
		if !ln.delivered.has(id) {
			return true
		}
	}
	return d.behind
}

// finished notes that deliveries have succeeded: those behind them need not look.
func (ln *lane) finished(ds []*delivery) {
	if ln.c.cfg.Unordered {
		return
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	for _, d := range ds {
		ln.delivered.add(d.env.OutboxID)
	}
}

// unfinished notes that deliveries have not succeeded: those behind them must look whether they may run.
func (ln *lane) unfinished(ds []*delivery) {
	if ln.c.cfg.Unordered {
		return
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	keys := make(map[[2]string]struct{}, len(ds))
	for _, d := range ds {
		key := d.aggregate()
		keys[key] = struct{}{}
		for _, mate := range ln.busy[key] {
			mate.behind = mate.behind || mate.aggregate() == key
		}
	}
	for _, d := range ln.queue {
		if _, ok := keys[d.aggregate()]; ok {
			d.behind = true
		}
	}
}
