package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/invariant"
	"github.com/bluecone-go/bluecone/outbox"
)

// A life takes a fraction of a second of real time.
const stuckAfter = 5 * time.Minute

// live runs the life of a seed in a bubble. It fails t if a promise was broken.
func live(t *testing.T, s *store, seed uint64) {
	s.clear(t)
	stuck := time.AfterFunc(stuckAfter, func() {
		panic(fmt.Sprintf("seed %d: the simulated time stands still: a goroutine waits for a mutex, whose holder waits for the simulated "+
			"time", seed))
	})
	defer stuck.Stop()
	l := newLife(s, draw(seed))
	synctest.Test(t, func(t *testing.T) {
		l.t, l.began, l.writer = t, time.Now(), make(chan struct{}, 1)
		l.logger = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		ctx, end := context.WithCancel(context.Background())
		defer end()
		l.ctx = ctx
		l.run()
		if t.Failed() {
			t.Logf("seed %d: %+v\n%s", seed, l.plan, strings.Join(l.journal, "\n"))
		}
	})
}

// run lives the life: some time of saves and faults, a while of calm, and a look at what came of it.
func (l *life) run() {
	for i := range l.plan.instances {
		l.start(i, fmt.Sprintf("i%d", i))
	}
	db := l.connect(observer, true).open()
	defer db.Close()
	for l.plan.releases && l.count(db, "SELECT COUNT(*) FROM bc_consumer_type WHERE event_type = ?", more{}.EventType()) < len(consumers) {
		wait(l.ctx, time.Second) // nobody saves events of a type that nobody is known to take
	}
	n := 0
	for _, s := range l.plan.saves {
		first := n
		l.running.Go(func() { l.save(s, first) })
		n += len(s.events)
	}
	for _, tr := range l.plan.troubles {
		l.running.Go(func() { l.suffer(tr) })
	}
	for _, j := range l.plan.jumps {
		l.running.Go(func() { l.leap(j) })
	}
	l.join()
	ob, err := outbox.New(db, outbox.Config{Logger: l.logger, Instance: observer, DeleteSent: l.plan.deletes})
	l.must(err)
	for time.Since(l.began) < busyTime {
		wait(l.ctx, 3*time.Second)
		l.operate(db, ob)
	}
	l.running.Wait()
	l.calm()
	for !l.done(db) {
		if time.Since(l.began) > quietBy {
			l.t.Errorf("seed %d: not everything came to its end", l.plan.seed)
			break
		}
		wait(l.ctx, 2*time.Second)
		l.operate(db, ob)
	}
	l.replayBesideRetention(db, ob)
	l.storeOutside(db)
	l.check(db)
	if l.plan.retention {
		wait(l.ctx, 100*time.Second)
		l.check(db)
		if n := l.count(db, "SELECT COUNT(*) FROM bc_outbox_event"); n > 0 {
			l.t.Errorf("seed %d: retention has left %d events", l.plan.seed, n)
		}
	}
	l.restarts.Wait()
	for i := range l.instances {
		l.at(i).stop()
		<-l.at(i).done
	}
}

const observer = "observer" // the operator's line

// calm ends all faults.
func (l *life) calm() {
	l.eachLine(func(ln *line) { ln.calm = true })
	l.mu.Lock()
	l.calmed = true
	l.mu.Unlock()
	l.note("calm")
}

func (l *life) isCalm() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calmed
}

func (l *life) eachLine(change func(*line)) {
	l.mu.Lock()
	lines := l.lines
	l.mu.Unlock()
	for _, ln := range lines {
		ln.set(change)
	}
}

// save saves events together with a business row of each, and notes what the producer was told.
func (l *life) save(s save, first int) {
	wait(l.ctx, s.at)
	in := l.at(s.instance)
	var ids []string
	var told string
	tx, err := in.db.BeginTx(l.ctx, nil)
	if err != nil {
		return
	}
	for i, a := range s.events {
		id, err := l.saveOne(in, tx, s.key, first+i, fmt.Sprint(a))
		if ids = append(ids, id); err != nil {
			told = "failed"
			break
		}
	}
	switch {
	case told == "failed" || s.rollback:
		told = "failed"
		_ = tx.Rollback()
	case tx.Commit() != nil:
		told = "unknown"
	default:
		told = "committed"
	}
	l.note("producer on %s: %v: %s", in.line.name, ids, told)
	l.mu.Lock()
	defer l.mu.Unlock()
	rank := map[string]int{"": 0, "failed": 1, "unknown": 2, "committed": 3}
	for _, id := range ids {
		if rank[told] > rank[l.told[id]] {
			l.told[id] = told
		}
	}
}

// saveOne saves one event in tx, and tells its id.
func (l *life) saveOne(in *instance, tx bun.Tx, key, n int, aggregate string) (id string, err error) {
	tenant := l.plan.tenantOf(n, key)
	e, line := happened{N: n, Of: aggregate, Seat: fmt.Sprint("seat-", n)}, lineage(tenant, aggregate)
	if err := tx.QueryRowContext(l.ctx, "SELECT COUNT(*) FROM business WHERE aggregate = ?", line).Scan(&e.Seq); err != nil {
		return "", err
	}
	if key == 0 {
		err = in.ob.Save(l.ctx, tx, outbox.With(l.plan.inRelease(e, in.place), l.options(n, tenant)...))
	} else {
		e.Seat = fmt.Sprint("seat of key ", key)
		err = in.ob.Save(l.ctx, tx, keyed{e, key})
		id = outbox.EventID(0, e.EventType(), fmt.Sprint("key-", key))
	}
	if err == nil && key == 0 {
		err = tx.QueryRowContext(l.ctx, "SELECT event_id FROM bc_outbox_event ORDER BY id DESC LIMIT 1").Scan(&id)
	}
	for _, query := range []string{
		"INSERT INTO business (event_id, aggregate) VALUES (?0, ?1)",
		"INSERT INTO seat (id, tenant, aggregate) VALUES (?2, ?3, ?4) ON CONFLICT DO NOTHING",
	} {
		if err == nil {
			_, err = tx.ExecContext(l.ctx, query, id, line, e.Seat, tenant, aggregate)
		}
	}
	return id, err
}

// options are those of an event of a tenant.
func (l *life) options(n int, tenant int64) (options []outbox.Option) {
	if tenant > 0 {
		options = append(options, outbox.Tenant(tenant, 0))
	}
	if l.plan.isDelayed(n) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.due[n] = time.Now().Add(l.plan.delayed[n]).Truncate(time.Millisecond)
		options = append(options, outbox.DeliverAt(l.due[n]))
	}
	return options
}

// suffer brings a trouble over an instance.
func (l *life) suffer(tr trouble) {
	wait(l.ctx, tr.at)
	in := l.at(tr.instance)
	l.note("%s: %s for %v", in.line.name, tr.kind, tr.lasts)
	switch tr.kind {
	case "freeze":
		in.line.set(func(ln *line) { ln.frozen = time.Now().Add(tr.lasts) })
	case "cut":
		in.line.set(func(ln *line) { ln.cut = true })
		wait(l.ctx, tr.lasts)
		in.line.set(func(ln *line) { ln.cut = false })
	case "crash":
		in.line.set(func(ln *line) { ln.cut = true })
		in.stop()
		<-in.done
		wait(l.ctx, tr.lasts)
		l.start(tr.instance, in.line.name+"+")
	}
}

// done reports whether nothing is under way any more.
func (l *life) done(db *bun.DB) bool {
	return l.hasJoined(db) && l.count(db, "SELECT (SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT') + "+
		"(SELECT COUNT(*) FROM bc_event_consume_log WHERE status NOT IN ('SUCCESS', 'SKIPPED')) + "+
		"(SELECT COUNT(*) FROM bc_bulk_operation WHERE state = 'RUNNING')") == 0
}

// must notes a failure and goes on: in a bubble everybody has to be brought home.
func (l *life) must(err error) {
	if err != nil {
		l.t.Errorf("seed %d: %v", l.plan.seed, err)
	}
}

func (l *life) count(db *bun.DB, query string, args ...any) (n int) {
	l.must(db.QueryRowContext(l.ctx, query, args...).Scan(&n))
	return n
}

// deadDelivery is one that an operator has to decide about.
type deadDelivery struct {
	ConsumerName, EventID, ErrorMessage string
	TenantID                            int64
	N                                   int // the event's number in the plan
}

func (d deadDelivery) isPlanned() bool { return strings.Contains(d.ErrorMessage, "planned") }

// operate does what an operator does: whatever is DEAD is retried, or skipped.
func (l *life) operate(db *bun.DB, ob *outbox.Outbox) {
	if !l.plan.retention {
		l.replay(db, ob, 1)
	}
	var dead []deadDelivery
	l.must(db.NewRaw("SELECT l.consumer_name, l.event_id, COALESCE(l.error_message, '') AS error_message, COALESCE(l.tenant_id, 0) AS "+
		"tenant_id, "+
		"COALESCE(e.event_payload ->> '$.n', e.event_payload ->> '$.number', -1) AS n FROM bc_event_consume_log l "+
		"LEFT JOIN bc_outbox_event e ON e.event_id = l.event_id WHERE l.status = 'DEAD'").Scan(l.ctx, &dead))
	op := outbox.Operation{Actor: "operator", Reason: "planned"}
	for i, d := range dead {
		l.judgeDead(d)
		if l.isLeft(db, d.TenantID) {
			continue
		}
		if l.plan.skips && i%2 == 0 {
			if err := ob.Skip(l.ctx, op, d.EventID, d.ConsumerName); err == nil {
				l.skipped[d.ConsumerName+"/"+d.EventID] = true
			}
			continue
		}
		if err := ob.Retry(l.ctx, op, d.EventID, d.ConsumerName); err != nil {
			l.note("operator: %v", err) // tries again
		} else if d.ConsumerName == "Passing" { // others have passed it
			l.unordered = []string{"Passing"}
		}
	}
}

// storeOutside puts what happened outside where the others' effects are.
func (l *life) storeOutside(db *bun.DB) {
	for _, m := range l.sent {
		_, err := db.ExecContext(l.ctx, "INSERT INTO effect (consumer, event_id, aggregate, seq) VALUES ('Outside', ?, ?, ?)", m.ID,
			l.lineOf(m), m.Payload.Seq)
		l.must(err)
	}
}

// check looks at every promise.
func (l *life) check(db *bun.DB) {
	cfg := invariant.Config{
		Quiet: true, Pauses: !l.plan.leapsBack(), Effects: invariant.Effects{
			Table:     "kept_effect",
			Unordered: append([]string{"Unordered", "Unordered" + replayed}, l.unordered...),
		},
	}
	cfg.History.Unknown = make(map[string]bool)
	for id, told := range l.told {
		exists := l.count(db, "SELECT COUNT(*) FROM business WHERE event_id = ?", id) > 0
		switch {
		case told == "failed":
			cfg.History.Failed = append(cfg.History.Failed, id)
			continue
		case l.plan.retention: // its effects are proof enough
		case told == "committed":
			cfg.History.Committed = append(cfg.History.Committed, id)
		default:
			cfg.History.Unknown[id] = exists
		}
		for _, name := range l.plan.consumers() {
			l.checkEffect(db, id, name, exists)
		}
	}
	found, err := invariant.Check(l.ctx, db, cfg)
	l.must(err)
	for _, v := range found {
		if l.plan.leapsBack() && strings.HasPrefix(v.Invariant, "I10 ") {
			continue // it compares times of the database
		}
		l.t.Errorf("seed %d: %v", l.plan.seed, v)
	}
	l.checkReplays(db)
	// A handler that has lost its connection, after five tries in a row, while the database answers has failed: that counts.
	if n := l.count(db, "SELECT COUNT(*) FROM bc_delivery_attempt WHERE outcome IN ('FAILED', 'DEAD') AND consumer_name <> 'Outside' "+
		"AND error_message LIKE ? "+
		"AND error_message NOT LIKE '%could not be trusted any more%'", "%"+errLost.Error()+"%"); n > 0 {
		l.t.Errorf("seed %d: %d times the database's trouble was counted as an attempt", l.plan.seed, n)
	}
	if n := l.count(db, "SELECT COUNT(*) FROM (SELECT 1 FROM effect GROUP BY consumer, event_id HAVING COUNT(*) > 1) AS d"); n > 0 {
		l.t.Errorf("seed %d: %d effects happened twice", l.plan.seed, n)
	}
}

// checkEffect looks whether one consumer got one event, once.
func (l *life) checkEffect(db *bun.DB, id, consumer string, exists bool) {
	want := 1
	if !exists || l.skipped[consumer+"/"+id] {
		want = 0
	}
	n := 0
	if consumer == "Outside" { // at least once; once where nothing goes wrong
		l.mu.Lock()
		defer l.mu.Unlock()
		if n = l.outside[id]; want == 0 || (n > 1 && !l.plan.peaceful()) {
			n = want
		}
	} else {
		n = l.count(db, "SELECT COUNT(*) FROM effect WHERE consumer = ? AND event_id = ?", consumer, id)
	}
	if n != want {
		l.t.Errorf("seed %d: event %s had %d effects at %s, not %d", l.plan.seed, id, n, consumer, want)
	}
}
