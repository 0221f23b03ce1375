package alert

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/text"
)

// fingerprint is the identity of what is wrong.
func (s signal) fingerprint() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{s.rule, s.consumer, s.eventType, s.subject}, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// state is a row of bc_alert; times are microseconds since the epoch by the database's clock.
type state struct {
	fingerprint                       string
	level                             Level
	firing                            bool
	episode, notices, reminders       int64
	since, first, last, next, version int64
}

// step decides what an observation makes of an alert, and which message, if any, tells of it.
// A nil signal is one that is not there any more.
func (a state) step(s *signal, now int64, cfg Config) (state, Kind) {
	after := func(since int64, d time.Duration) bool { return d >= 0 && now-since >= d.Microseconds() }
	switch {
	case s == nil && (!a.firing || !after(a.last, cfg.ResolveAfter)):
		return a, ""
	case s == nil:
		a.firing, a.next = false, 0
		return a, Resolved
	case !a.firing:
		a.firing, a.level, a.reminders, a.first, a.last, a.since = true, ruleOf(s.rule).Level, 0, now, now, now
		a.episode++
		if s.since > 0 {
			a.since = s.since
		}
		a.next = now + cfg.RemindEvery.Microseconds()
		return a, Firing
	}
	a.last = now
	if a.level == Warn && after(a.first, cfg.EscalateAfter) {
		a.level = Critical
		return a, Escalated
	}
	if cfg.RemindEvery > 0 && now >= a.next {
		a.reminders++
		a.next = now + min(cfg.RemindEvery<<min(a.reminders, 20), max(reminderCap, cfg.RemindEvery)).Microseconds()
		return a, Reminder
	}
	return a, ""
}

// book is what is known of alerts, in the database.
type book struct {
	db  *bun.DB
	d   dialect.Dialect
	cfg Config
}

// observe records that conditions hold, and writes the messages that this calls for. Each is a
// transaction of its own.
func (b *book) observe(ctx context.Context, signals []signal) error {
	for _, s := range signals {
		err := b.db.RunInTx(ctx, b.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error { return b.record(ctx, tx, s) })
		if err != nil {
			return fmt.Errorf("alert: record %s of %s: %w", s.rule, s.about(), err)
		}
	}
	return nil
}

func (b *book) record(ctx context.Context, tx bun.Tx, s signal) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO bc_alert (fingerprint, rule, subject, consumer_name, event_type, level, state, says, "+
		"remedy, since_at, first_seen_at, last_seen_at) "+
		"VALUES (?, ?, ?, ?, ?, 'WARN', 'RESOLVED', '', '', "+b.d.Now+", "+b.d.Now+", "+b.d.Now+")"+b.d.Ignore("fingerprint"),
		s.fingerprint(), s.rule, text.Clean(s.about(), 300), orNull(text.Clean(s.consumer, 128)), orNull(text.Clean(s.eventType, 128)))
	if err != nil {
		return err
	}
	was, now, err := b.lock(ctx, tx, s.fingerprint())
	if err != nil {
		return err
	}
	is, kind := was.step(&s, now, b.cfg)
	says := text.Clean(s.says, text.MaxError)
	next, args := "NULL", []any{
		string(is.level), is.episode, is.notices, is.reminders, s.count, says, ruleOf(s.rule).Remedy, is.since,
		is.first,
	}
	if is.next > 0 {
		next = b.d.At
		args = append(args, is.next)
	}
	if kind != "" {
		is.notices++
		args[2] = is.notices
	}
	_, err = tx.ExecContext(ctx, "UPDATE bc_alert SET state = 'FIRING', level = ?, episode = ?, notices = ?, reminders = ?, occurrences = "+
		"?, says = ?, remedy = ?, since_at = "+b.d.At+", first_seen_at = "+b.d.At+
		", last_seen_at = "+b.d.Now+", next_notice_at = "+next+", resolved_at = NULL, lock_version = lock_version + 1 WHERE fingerprint = ?",
		append(args, s.fingerprint())...)
	if err != nil || kind == "" {
		return err
	}
	return b.write(ctx, tx, is, kind, s.count, says)
}

// lock reads an alert, and the time, under the alert's lock.
func (b *book) lock(ctx context.Context, tx bun.Tx, fingerprint string) (a state, now int64, err error) {
	a.fingerprint = fingerprint
	err = tx.QueryRowContext(ctx, "SELECT "+b.d.Micros(b.d.Now)+", level, CASE WHEN state = 'FIRING' THEN 1 ELSE 0 END, "+
		"episode, notices, reminders, "+b.d.Micros("since_at")+", "+b.d.Micros("first_seen_at")+", "+b.d.Micros("last_seen_at")+", "+
		"COALESCE("+b.d.Micros("next_notice_at")+", 0), lock_version FROM bc_alert WHERE fingerprint = ?"+b.d.ForUpdate, fingerprint).
		Scan(&now, &a.level, &a.firing, &a.episode, &a.notices, &a.reminders, &a.since, &a.first, &a.last, &a.next, &a.version)
	return a, now, err
}

// resolve ends the alerts whose condition has not been seen for a while.
func (b *book) resolve(ctx context.Context) error {
	var gone []string
	rows, err := b.db.QueryContext(ctx,
		"SELECT fingerprint FROM bc_alert WHERE state = 'FIRING' AND last_seen_at <= "+b.d.After+" ORDER BY last_seen_at LIMIT 1000",
		-dialect.Micro(b.cfg.ResolveAfter))
	if err != nil {
		return fmt.Errorf("alert: read what is over: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var f string
		if err := rows.Scan(&f); err != nil {
			return fmt.Errorf("alert: read what is over: %w", err)
		}
		gone = append(gone, f)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("alert: read what is over: %w", err)
	}
	for _, f := range gone {
		err := b.db.RunInTx(ctx, b.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error { return b.over(ctx, tx, f) })
		if err != nil {
			return fmt.Errorf("alert: resolve: %w", err)
		}
	}
	return nil
}

func (b *book) over(ctx context.Context, tx bun.Tx, fingerprint string) error {
	was, now, err := b.lock(ctx, tx, fingerprint)
	if err != nil {
		return err
	}
	is, kind := was.step(nil, now, b.cfg)
	if kind == "" { // somebody has seen it meanwhile
		return nil
	}
	is.notices++
	_, err = tx.ExecContext(ctx,
		"UPDATE bc_alert SET state = 'RESOLVED', notices = ?, next_notice_at = NULL, resolved_at = "+b.d.Now+", lock_version = lock_version + "+
			"1 WHERE fingerprint = ?", is.notices, fingerprint)
	if err != nil {
		return err
	}
	var count int64
	var says string
	if err := tx.QueryRowContext(ctx, "SELECT occurrences, says FROM bc_alert WHERE fingerprint = ?", fingerprint).
		Scan(&count, &says); err != nil {
		return err
	}
	return b.write(ctx, tx, is, kind, count, says)
}

// write adds a message for every sink that the alert's level concerns. A sink that has not got the
// last one about this alert needs no reminder.
func (b *book) write(ctx context.Context, tx bun.Tx, a state, kind Kind, count int64, says string) error {
	for _, r := range b.cfg.Routes {
		if r.Least == Critical && a.level != Critical {
			continue
		}
		if kind == Reminder {
			var waiting int
			err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM bc_alert_message WHERE fingerprint = ? AND sink = ? AND state = 'WAITING'",
				a.fingerprint, r.Name).Scan(&waiting)
			if err != nil {
				return err
			}
			if waiting > 0 {
				continue
			}
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO bc_alert_message (fingerprint, notice, sink, kind, level, occurrences, says, since_at, "+
			"next_retry_at, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, "+b.d.At+", "+b.d.Now+", "+b.d.Now+")"+
			b.d.Ignore("fingerprint, notice, sink"), a.fingerprint, a.notices, r.Name, string(kind), string(a.level), count, says, a.since)
		if err != nil {
			return err
		}
	}
	return nil
}

// clean removes what is over and was told long ago. It answers how many messages it gave up.
func (b *book) clean(ctx context.Context) (lost int64, err error) {
	keep := -dialect.Micro(b.cfg.Keep)
	for _, q := range []string{
		"DELETE FROM bc_alert_message WHERE state = 'SENT' AND created_at < " + b.d.After,
		"DELETE FROM bc_alert_message WHERE state = 'WAITING' AND created_at < " + b.d.After,
		"DELETE FROM bc_alert WHERE state = 'RESOLVED' AND last_seen_at < " + b.d.After,
	} {
		res, err := b.db.ExecContext(ctx, q, keep)
		if err != nil {
			return lost, fmt.Errorf("alert: remove what is over: %w", err)
		}
		if n, err := res.RowsAffected(); err == nil && strings.Contains(q, "WAITING") {
			lost = n
		}
	}
	return lost, nil
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
