package store

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// AlertMessage tells a sink of an alert.
type AlertMessage struct {
	Fingerprint string // of the alert
	Notice      int64  // its number among the messages of the alert
	Kind, Level string
	Count       int64
	Says        string
	Since       int64 // microseconds since the epoch

	// What a waiting message has besides.
	ID, Version, Attempts              int64
	Rule, Subject, Consumer, EventType string // of its alert; empty if there is none any more
}

// IsWaiting reports whether a message about an alert waits for a sink, by uk_notice_sink.
func (Alerts) IsWaiting(ctx context.Context, tx bun.Tx, fingerprint, sink string) (bool, error) {
	var n int
	err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM bc_alert_message WHERE fingerprint = ? AND sink = ? AND state = 'WAITING'",
		fingerprint, sink).Scan(&n)
	return n > 0, err
}

// AddMessage adds a message for a sink, unless this notice of the alert has one.
func (a Alerts) AddMessage(ctx context.Context, tx bun.Tx, sink string, m AlertMessage) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO bc_alert_message (fingerprint, notice, sink, kind, level, occurrences, says, since_at, "+
		"next_retry_at, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, "+a.d.At+", "+a.d.Now+", "+a.d.Now+")"+
		a.d.Ignore("fingerprint, notice, sink"), m.Fingerprint, m.Notice, sink, m.Kind, m.Level, m.Count, m.Says, m.Since)
	return err
}

// DueMessages lists the messages that are due for a sink, the critical ones first, each after those before it about the same
// alert, along idx_state_sink.
func (a Alerts) DueMessages(ctx context.Context, idb bun.IDB, sink string, most int) (found []AlertMessage, err error) {
	rows, err := idb.QueryContext(ctx, "SELECT m.id, m.lock_version, m.attempts, m.notice, m.fingerprint, m.kind, m.level, "+
		"m.occurrences, m.says, "+a.micros("m.since_at")+", COALESCE(s.rule, ''), COALESCE(s.subject, ''), "+
		"COALESCE(s.consumer_name, ''), COALESCE(s.event_type, '') "+
		"FROM bc_alert_message m LEFT JOIN bc_alert s ON s.fingerprint = m.fingerprint "+
		"WHERE m.state = 'WAITING' AND m.sink = ? AND m.next_retry_at <= "+a.d.Now+" AND NOT EXISTS (SELECT 1 FROM bc_alert_message p "+
		"WHERE p.state = 'WAITING' AND p.sink = m.sink AND p.fingerprint = m.fingerprint AND p.id < m.id) "+
		"ORDER BY CASE WHEN m.level = 'CRITICAL' THEN 0 ELSE 1 END, m.id LIMIT ?", sink, most)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var m AlertMessage
		if err := rows.Scan(&m.ID, &m.Version, &m.Attempts, &m.Notice, &m.Fingerprint, &m.Kind, &m.Level, &m.Count, &m.Says, &m.Since,
			&m.Rule, &m.Subject, &m.Consumer, &m.EventType); err != nil {
			return nil, err
		}
		found = append(found, m)
	}
	return found, rows.Err()
}

// ClaimMessage counts an attempt at a message that nobody has claimed since it was read, by the primary key. If the attempt does
// not end, the message is due again after a pause.
func (a Alerts) ClaimMessage(ctx context.Context, idb bun.IDB, m AlertMessage, owner string, pause time.Duration) (bool, error) {
	return hasChanged(idb.ExecContext(ctx,
		"UPDATE bc_alert_message SET "+countUp("attempts")+", next_retry_at = "+a.d.After+", locked_by = ?, "+countUp("lock_version")+
			" WHERE id = ? AND lock_version = ? AND state = 'WAITING'",
		dialect.Micro(pause), owner, m.ID, m.Version))
}

// MessageSent makes a message SENT that waits, by the primary key.
func (a Alerts) MessageSent(ctx context.Context, idb bun.IDB, id int64) error {
	_, err := idb.ExecContext(ctx, "UPDATE bc_alert_message SET state = 'SENT', sent_at = "+a.d.Now+", last_error = NULL, locked_by = NULL, "+
		countUp("lock_version")+" WHERE id = ? AND state = 'WAITING'", id)
	return err
}

// MessageFailed writes down why an attempt at a message that waits has failed, by the primary key.
func (Alerts) MessageFailed(ctx context.Context, idb bun.IDB, id int64, why string) error {
	_, err := idb.ExecContext(ctx, "UPDATE bc_alert_message SET last_error = ?, locked_by = NULL, "+countUp("lock_version")+
		" WHERE id = ? AND state = 'WAITING'", why, id)
	return err
}

// RemoveMessages removes the messages in a state, SENT or WAITING, that are older than this, along idx_state_sink, and tells
// how many they were.
func (a Alerts) RemoveMessages(ctx context.Context, idb bun.IDB, state string, age time.Duration) (int64, error) {
	res, err := idb.ExecContext(ctx, "DELETE FROM bc_alert_message WHERE state = ? AND created_at < "+a.d.After, state, -dialect.Micro(age))
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// LongestWait is how long the oldest message that waits has waited, along idx_state_sink.
func (a Alerts) LongestWait(ctx context.Context, idb bun.IDB) (time.Duration, error) {
	var age int64
	err := idb.QueryRowContext(ctx, "SELECT COALESCE(MAX("+a.d.Micros(a.d.Now)+" - "+a.d.Micros("created_at")+
		"), 0) FROM bc_alert_message WHERE state = 'WAITING'").Scan(&age)
	return max(time.Duration(age)*time.Microsecond, 0), err
}
