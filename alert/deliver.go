package alert

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

const (
	// retryFirst and retryLongest bound the pauses between attempts at a message.
	retryFirst, retryLongest = 15 * time.Second, 10 * time.Minute
)

// message is a row of bc_alert_message, with what its alert knows.
type message struct {
	id, version, attempts, noticeNo int64
	notice                          Notice
}

// deliver sends what waits, to all sinks side by side.
func (a *Alerter) deliver(ctx context.Context) (sent, failed int64, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	for _, r := range a.cfg.Routes {
		wg.Go(func() {
			s, f, e := a.deliverTo(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			sent, failed, errs = sent+s, failed+f, append(errs, e)
		})
	}
	wg.Wait()
	return sent, failed, errors.Join(errs...)
}

// deliverTo sends what waits for one sink, until it refuses one: the rest can wait for the next turn.
func (a *Alerter) deliverTo(ctx context.Context, r Route) (sent, failed int64, err error) {
	waiting, err := a.waiting(ctx, r.Name)
	if err != nil {
		return 0, 0, err
	}
	for _, m := range waiting {
		mine, err := a.claim(ctx, m)
		if err != nil {
			return sent, failed, err
		}
		if !mine {
			continue
		}
		said := a.send(ctx, r, m)
		if err := a.settle(ctx, m, said); err != nil {
			return sent, failed, err
		}
		if said != nil {
			telemetry.Add(ctx, a.failed, 1, "sink", r.Name)
			a.cfg.Logger.WarnContext(ctx, "an alert could not be delivered; it is tried again", "sink", r.Name, "rule", m.notice.Rule, "subject",
				m.notice.Subject, telemetry.Attempt, m.attempts+1, telemetry.Err, text.Error(said))
			return sent, failed + 1, nil
		}
		telemetry.Add(ctx, a.sent, 1, "sink", r.Name)
		sent++
	}
	return sent, failed, nil
}

// waiting lists the messages that are due for a sink, the critical ones first, each after those before it about the same alert.
func (a *Alerter) waiting(ctx context.Context, sink string) (out []message, err error) {
	d := a.book.d
	rows, err := a.db.QueryContext(ctx, "SELECT m.id, m.lock_version, m.attempts, m.notice, m.fingerprint, m.kind, m.level, "+
		"m.occurrences, m.says, "+d.Micros("m.since_at")+", COALESCE(s.rule, ''), COALESCE(s.subject, ''), "+
		"COALESCE(s.consumer_name, ''), COALESCE(s.event_type, '') "+
		"FROM bc_alert_message m LEFT JOIN bc_alert s ON s.fingerprint = m.fingerprint "+
		"WHERE m.state = 'WAITING' AND m.sink = ? AND m.next_retry_at <= "+d.Now+" AND NOT EXISTS (SELECT 1 FROM bc_alert_message p "+
		"WHERE p.state = 'WAITING' AND p.sink = m.sink AND p.fingerprint = m.fingerprint AND p.id < m.id) "+
		"ORDER BY CASE WHEN m.level = 'CRITICAL' THEN 0 ELSE 1 END, m.id LIMIT ?", sink, perTurn)
	if err != nil {
		return nil, fmt.Errorf("alert: read what waits for %s: %w", sink, err)
	}
	defer rows.Close()
	for rows.Next() {
		var m message
		var since int64
		n := &m.notice
		var fingerprint string
		if err := rows.Scan(&m.id, &m.version, &m.attempts, &m.noticeNo, &fingerprint, &n.Kind, &n.Level, &n.Count, &n.Says, &since, &n.Rule,
			&n.Subject, &n.Consumer, &n.EventType); err != nil {
			return nil, fmt.Errorf("alert: read what waits for %s: %w", sink, err)
		}
		n.ID = fmt.Sprintf("%s-%d", fingerprint, m.noticeNo)
		n.Since = time.UnixMicro(since).UTC()
		a.complete(n)
		out = append(out, m)
	}
	return out, rows.Err()
}

// complete adds what the deployment and the rule know.
func (a *Alerter) complete(n *Notice) {
	n.Service, n.Environment, n.Remedy = a.cfg.Service, a.cfg.Environment, ruleOf(n.Rule).Remedy
	n.Runbook = a.cfg.Runbook + "#" + n.Rule
	if a.cfg.Link != nil {
		n.Link = a.cfg.Link(*n)
	}
}

// claim takes a message before it is sent: if this process dies, it falls due again.
func (a *Alerter) claim(ctx context.Context, m message) (bool, error) {
	pause := max(min(retryFirst<<min(m.attempts, 10), retryLongest), 2*a.cfg.SendTimeout)
	res, err := a.db.ExecContext(ctx,
		"UPDATE bc_alert_message SET attempts = attempts + 1, next_retry_at = "+a.book.d.After+", locked_by = ?, lock_version = lock_version "+
			"+ 1 WHERE id = ? AND lock_version = ? AND state = 'WAITING'",
		dialect.Micro(pause/2+rand.N(pause/2)), a.cfg.Instance, m.id, m.version)
	if err != nil {
		return false, fmt.Errorf("alert: take a message: %w", err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// send calls the sink, which may do its worst.
func (a *Alerter) send(ctx context.Context, r Route, m message) (err error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.SendTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				done <- fmt.Errorf("the sink %s panicked: %v", r.Name, v)
			}
		}()
		done <- r.Sink.Send(ctx, m.notice)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done(): // one that does not heed its context is left behind
		return fmt.Errorf("the sink %s has not answered within %v: %w", r.Name, a.cfg.SendTimeout, ctx.Err())
	}
}

// settle notes what became of a message, even at the end of ctx.
func (a *Alerter) settle(ctx context.Context, m message, said error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	set, args := "state = 'SENT', sent_at = "+a.book.d.Now+", last_error = NULL", []any{}
	if said != nil {
		set, args = "last_error = ?", []any{text.Error(said)}
	}
	_, err := a.db.ExecContext(ctx, "UPDATE bc_alert_message SET "+set+", locked_by = NULL, lock_version = lock_version + 1 WHERE id = ? "+
		"AND state = 'WAITING'", append(args, m.id)...)
	if err != nil {
		return fmt.Errorf("alert: note what became of a message: %w", err)
	}
	return nil
}
