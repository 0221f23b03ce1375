package alert

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/text"
)

// fingerprint is the identity of what is wrong.
func (s signal) fingerprint() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{s.rule, s.consumer, s.eventType, s.subject}, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// step decides what an observation makes of an alert, and which message, if any, tells of it.
// A nil signal is one that is not there any more.
func step(a store.Alert, s *signal, now int64, cfg Config) (store.Alert, Kind) {
	after := func(since int64, d time.Duration) bool { return d >= 0 && now-since >= d.Microseconds() }
	switch {
	case s == nil && (!a.IsFiring || !after(a.Last, cfg.ResolveAfter)):
		return a, ""
	case s == nil:
		a.IsFiring, a.Next = false, 0
		return a, Resolved
	case !a.IsFiring:
		a.IsFiring, a.Level, a.Reminders, a.First, a.Last, a.Since = true, string(ruleOf(s.rule).Level), 0, now, now, now
		a.Episode++
		if s.since > 0 {
			a.Since = s.since
		}
		a.Next = now + cfg.RemindEvery.Microseconds()
		return a, Firing
	}
	a.Last = now
	if a.Level == string(Warn) && after(a.First, cfg.EscalateAfter) {
		a.Level = string(Critical)
		return a, Escalated
	}
	if cfg.RemindEvery > 0 && now >= a.Next {
		a.Reminders = min(max(a.Reminders, 0), mostReminders) + 1
		a.Next = now + min(cfg.RemindEvery<<min(a.Reminders, 20), max(reminderCap, cfg.RemindEvery)).Microseconds()
		return a, Reminder
	}
	return a, ""
}

// book is what is known of alerts, in the database.
type book struct {
	db  *bun.DB
	d   dialect.Dialect
	sql store.Alerts
	cfg Config
}

// observe records that conditions hold, and writes the messages that this calls for. Each is a
// transaction of its own.
func (b *book) observe(ctx context.Context, signals []signal) error {
	var errs []error
	for _, s := range signals {
		err := b.db.RunInTx(ctx, b.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error { return b.record(ctx, tx, s) })
		if err != nil { // its row may be malformed: the others are recorded
			errs = append(errs, fmt.Errorf("alert: record %s of %s: %w", s.rule, s.about(), err))
		}
	}
	return errors.Join(errs...)
}

func (b *book) record(ctx context.Context, tx bun.Tx, s signal) error {
	fingerprint := s.fingerprint()
	err := b.sql.Add(ctx, tx, store.NewAlert{
		Fingerprint: fingerprint, Rule: s.rule, Subject: text.Clean(s.about(), 300),
		Consumer: text.Clean(s.consumer, 128), EventType: text.Clean(s.eventType, 128),
	})
	if err != nil {
		return err
	}
	was, now, err := b.sql.Lock(ctx, tx, fingerprint)
	if err != nil {
		return err
	}
	is, kind := step(was, &s, now, b.cfg)
	if kind != "" {
		is.Notices++
	}
	seen := store.Observed{Count: s.count, Says: text.Clean(s.says, text.MaxError), Remedy: ruleOf(s.rule).Remedy}
	if err := b.sql.Fire(ctx, tx, fingerprint, is, seen); err != nil || kind == "" {
		return err
	}
	return b.write(ctx, tx, fingerprint, is, kind, seen)
}

// resolve ends the alerts whose condition has not been seen for a while.
func (b *book) resolve(ctx context.Context) error {
	gone, err := b.sql.Unseen(ctx, b.db, b.cfg.ResolveAfter, 1000)
	if err != nil {
		return fmt.Errorf("alert: read what is over: %w", err)
	}
	var errs []error
	for _, f := range gone {
		err := b.db.RunInTx(ctx, b.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error { return b.over(ctx, tx, f) })
		if err != nil {
			errs = append(errs, fmt.Errorf("alert: resolve: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (b *book) over(ctx context.Context, tx bun.Tx, fingerprint string) error {
	was, now, err := b.sql.Lock(ctx, tx, fingerprint)
	if err != nil {
		return err
	}
	is, kind := step(was, nil, now, b.cfg)
	if kind == "" { // somebody has seen it meanwhile
		return nil
	}
	is.Notices++
	if err := b.sql.Resolve(ctx, tx, fingerprint, is.Notices); err != nil {
		return err
	}
	seen, err := b.sql.LastObserved(ctx, tx, fingerprint)
	if err != nil {
		return err
	}
	return b.write(ctx, tx, fingerprint, is, kind, seen)
}

// write adds a message for every sink that the alert's level concerns. A sink that has not got the
// last one about this alert needs no reminder.
func (b *book) write(ctx context.Context, tx bun.Tx, fingerprint string, a store.Alert, kind Kind, seen store.Observed) error {
	for _, r := range b.cfg.Routes {
		if r.Least == Critical && a.Level != string(Critical) {
			continue
		}
		if kind == Reminder {
			isWaiting, err := b.sql.IsWaiting(ctx, tx, fingerprint, r.Name)
			if err != nil {
				return err
			}
			if isWaiting {
				continue
			}
		}
		err := b.sql.AddMessage(ctx, tx, r.Name, store.AlertMessage{
			Fingerprint: fingerprint, Notice: a.Notices, Kind: string(kind), Level: a.Level, Count: seen.Count, Says: seen.Says, Since: a.Since,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// clean removes what is over and was told long ago. It answers how many messages it gave up.
func (b *book) clean(ctx context.Context) (lost int64, err error) {
	_, err = b.sql.RemoveMessages(ctx, b.db, "SENT", b.cfg.Keep)
	if err == nil {
		lost, err = b.sql.RemoveMessages(ctx, b.db, "WAITING", b.cfg.Keep)
	}
	if err == nil {
		err = b.sql.RemoveResolved(ctx, b.db, b.cfg.Keep)
	}
	if err != nil {
		return lost, fmt.Errorf("alert: remove what is over: %w", err)
	}
	return lost, nil
}
