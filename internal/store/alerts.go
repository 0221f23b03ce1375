package store

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Alerts are the rows of bc_alert, and those of bc_alert_message that tell of them.
type Alerts struct{ d dialect.Dialect }

// NewAlerts returns the statements in the words of a database.
func NewAlerts(d dialect.Dialect) Alerts { return Alerts{d} }

// NewAlert is an alert that nobody may have recorded yet.
type NewAlert struct {
	Fingerprint         string // its identity
	Rule, Subject       string
	Consumer, EventType string // empty for none
}

// Alert is the state of an alert. Times are microseconds since the epoch by the database's clock, 0 for none.
type Alert struct {
	Level                       string
	IsFiring                    bool
	Episode, Notices, Reminders int64
	Since                       int64 // when the condition began
	First, Last                 int64 // when it was seen
	Next                        int64 // when a reminder is due
}

// Add records an alert, RESOLVED, unless its fingerprint is recorded already.
func (a Alerts) Add(ctx context.Context, tx bun.Tx, n NewAlert) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO bc_alert (fingerprint, rule, subject, consumer_name, event_type, level, state, says, "+
		"remedy, since_at, first_seen_at, last_seen_at) "+
		"VALUES (?, ?, ?, ?, ?, 'WARN', 'RESOLVED', '', '', "+a.d.Now+", "+a.d.Now+", "+a.d.Now+")"+a.d.Ignore("fingerprint"),
		n.Fingerprint, n.Rule, n.Subject, nullText(n.Consumer), nullText(n.EventType))
	return err
}

// micros is a time in microseconds since the epoch, 0 for none, and for a text of SQLite that is no time.
func (a Alerts) micros(column string) string { return "COALESCE(" + a.d.Micros(column) + ", 0)" }

// countUp counts a column up, from 0 again when it is high: a row that somebody else wrote must not make the statement fail.
func countUp(column string) string {
	return column + " = CASE WHEN " + column + " BETWEEN 0 AND 1000000000 THEN " + column + " + 1 ELSE 0 END"
}

// Lock locks an alert by the primary key, and reads it and the time.
func (a Alerts) Lock(ctx context.Context, tx bun.Tx, fingerprint string) (is Alert, now int64, err error) {
	err = tx.QueryRowContext(ctx, "SELECT "+a.d.Micros(a.d.Now)+", level, CASE WHEN state = 'FIRING' THEN 1 ELSE 0 END, "+
		"episode, notices, reminders, "+a.micros("since_at")+", "+a.micros("first_seen_at")+", "+a.micros("last_seen_at")+", "+
		a.micros("next_notice_at")+" FROM bc_alert WHERE fingerprint = ?"+a.d.ForUpdate, fingerprint).
		Scan(&now, &is.Level, &is.IsFiring, &is.Episode, &is.Notices, &is.Reminders, &is.Since, &is.First, &is.Last, &is.Next)
	return is, now, err
}

// Observed is what somebody has just seen of an alert.
type Observed struct {
	Count        int64
	Says, Remedy string
}

// Fire writes the state of an alert that is FIRING, by the primary key, as seen now.
func (a Alerts) Fire(ctx context.Context, tx bun.Tx, fingerprint string, is Alert, o Observed) error {
	next, args := "NULL", []any{is.Level, is.Episode, is.Notices, is.Reminders, o.Count, o.Says, o.Remedy, is.Since, is.First}
	if is.Next > 0 {
		next = a.d.At
		args = append(args, is.Next)
	}
	_, err := tx.ExecContext(ctx, "UPDATE bc_alert SET state = 'FIRING', level = ?, episode = ?, notices = ?, reminders = ?, occurrences = "+
		"?, says = ?, remedy = ?, since_at = "+a.d.At+", first_seen_at = "+a.d.At+
		", last_seen_at = "+a.d.Now+", next_notice_at = "+next+", resolved_at = NULL, "+countUp("lock_version")+" WHERE fingerprint = ?",
		append(args, fingerprint)...)
	return err
}

// Unseen lists the alerts that are FIRING and that nobody has seen for so long, along idx_state.
func (a Alerts) Unseen(ctx context.Context, idb bun.IDB, length time.Duration, most int) ([]string, error) {
	return readTexts(idb.QueryContext(ctx,
		"SELECT fingerprint FROM bc_alert WHERE state = 'FIRING' AND last_seen_at <= "+a.d.After+" ORDER BY last_seen_at LIMIT ?",
		-dialect.Micro(length), most))
}

// Resolve makes an alert RESOLVED, of which so many messages have told, by the primary key.
func (a Alerts) Resolve(ctx context.Context, tx bun.Tx, fingerprint string, notices int64) error {
	_, err := tx.ExecContext(ctx,
		"UPDATE bc_alert SET state = 'RESOLVED', notices = ?, next_notice_at = NULL, resolved_at = "+a.d.Now+", "+countUp("lock_version")+
			" WHERE fingerprint = ?", notices, fingerprint)
	return err
}

// LastObserved reads what was last seen of an alert, but for the remedy, by the primary key.
func (Alerts) LastObserved(ctx context.Context, tx bun.Tx, fingerprint string) (o Observed, err error) {
	err = tx.QueryRowContext(ctx, "SELECT occurrences, says FROM bc_alert WHERE fingerprint = ?", fingerprint).
		Scan(&o.Count, &o.Says)
	return o, err
}

// RemoveResolved removes the alerts that are RESOLVED and were last seen longer ago than this, along idx_state.
func (a Alerts) RemoveResolved(ctx context.Context, idb bun.IDB, age time.Duration) error {
	_, err := idb.ExecContext(ctx, "DELETE FROM bc_alert WHERE state = 'RESOLVED' AND last_seen_at < "+a.d.After, -dialect.Micro(age))
	return err
}

// FiringAlerts is how many alerts of a rule and a level are FIRING.
type FiringAlerts struct {
	Rule, Level string
	Count       int64
}

// CountFiring counts the alerts that are FIRING, along idx_state.
func (Alerts) CountFiring(ctx context.Context, idb bun.IDB) (found []FiringAlerts, err error) {
	rows, err := idb.QueryContext(ctx, "SELECT rule, level, COUNT(*) FROM bc_alert WHERE state = 'FIRING' GROUP BY rule, level")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var f FiringAlerts
		if err := rows.Scan(&f.Rule, &f.Level, &f.Count); err != nil {
			return nil, err
		}
		found = append(found, f)
	}
	return found, rows.Err()
}
