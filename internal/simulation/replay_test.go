package simulation

import (
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/outbox"
)

// The operator replays events beside deliveries, and beside the retention that removes them.

const replayed = "@replay" // what the log adds to the name of the consumer

// replay replays what Unordered has had, each event once: there is nothing to replay, or it is delivered once more.
func (l *life) replay(db *bun.DB, ob *outbox.Outbox, most int) {
	if !l.plan.replays {
		return
	}
	var ids []string
	l.must(db.NewRaw("SELECT event_id FROM bc_event_consume_log WHERE consumer_name = 'Unordered' AND status = 'SUCCESS' ORDER BY id").
		Scan(l.ctx, &ids))
	for _, id := range ids {
		if _, done := l.replays[id]; done || most == 0 {
			continue
		}
		err := ob.Replay(l.ctx, outbox.Operation{Actor: "operator", Reason: "planned"}, id, "Unordered")
		if err != nil && !errors.Is(err, outbox.ErrNotFound) {
			l.must(err)
		}
		if err == nil {
			l.replays[id] = true
		}
		l.note("replay of %s: %v", id, err)
		most--
	}
}

// replayBesideRetention goes on with that when retention removes the events, and every statement of the instances may take
// a while. They are a minute old at the earliest when it runs for the second time.
func (l *life) replayBesideRetention(db *bun.DB, ob *outbox.Outbox) {
	if !l.plan.replays || !l.plan.retention {
		return
	}
	l.eachLine(func(ln *line) {
		if ln.name != observer {
			ln.calm, ln.rates = false, rates{slow: 300, delay: 2 * time.Second}
		}
	})
	for _, run := range []struct {
		at    time.Duration
		times int
	}{{time.Minute, 2}, {80 * time.Second, 20}} {
		wait(l.ctx, time.Until(l.began.Add(run.at)))
		for range run.times {
			l.replay(db, ob, 1)
			wait(l.ctx, 200*time.Millisecond)
		}
	}
	l.calm()
	for over := time.Now().Add(quietBy); !l.done(db) && time.Now().Before(over); {
		wait(l.ctx, 2*time.Second)
	}
}

// checkReplays looks that what was replayed happened once more, and nothing else.
func (l *life) checkReplays(db *bun.DB) {
	n := l.count(db, "SELECT COUNT(*) FROM effect WHERE consumer = ?", "Unordered"+replayed)
	if n != len(l.replays) {
		l.t.Errorf("seed %d: %d replays had %d effects", l.plan.seed, len(l.replays), n)
	}
}
