package store

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Inboxes are bc_inbox: what each partition of a broker has brought, and which instance has it for itself. All rows are found by their
// primary key.
type Inboxes struct{ d dialect.Dialect }

// NewInboxes returns the statements in the words of a database.
func NewInboxes(d dialect.Dialect) Inboxes { return Inboxes{d} }

const ofPartition = "inbox = ? AND partition_name = ?"

// Own gives a partition to an owner for a while, or reports false if another has it. It makes the row if there is none.
func (s Inboxes) Own(ctx context.Context, idb bun.IDB, inbox, partition, owner string, d time.Duration) (bool, error) {
	for try := 1; ; try++ {
		res, err := idb.ExecContext(ctx, "UPDATE bc_inbox SET owner = ?, owned_until = "+s.d.After+", updated_at = "+s.d.Now+" WHERE "+
			ofPartition+" AND (owner IS NULL OR owner = ? OR owned_until < "+s.d.Now+")", owner, dialect.Micro(d), inbox, partition, owner)
		if err != nil {
			return false, fmt.Errorf("inbox: take %s: %w", partition, err)
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 || try == 2 {
			return n > 0, err
		}
		if err := s.make(ctx, idb, inbox, partition); err != nil {
			return false, err
		}
	}
}

func (s Inboxes) make(ctx context.Context, idb bun.IDB, inbox, partition string) error {
	_, err := idb.ExecContext(ctx, "INSERT INTO bc_inbox (inbox, partition_name) VALUES (?, ?)"+s.d.Ignore("inbox, partition_name"),
		inbox, partition)
	if err != nil {
		return fmt.Errorf("inbox: note %s: %w", partition, err)
	}
	return nil
}

// Release gives back what an owner has of an inbox.
func (s Inboxes) Release(ctx context.Context, idb bun.IDB, inbox, owner string) error {
	_, err := idb.ExecContext(ctx, "UPDATE bc_inbox SET owner = NULL, owned_until = NULL WHERE inbox = ? AND owner = ?", inbox, owner)
	if err != nil {
		return fmt.Errorf("inbox: give back partitions: %w", err)
	}
	return nil
}

// Arrived is what one batch of a partition adds to its row.
type Arrived struct {
	Inbox, Partition, Offset        string // Offset is "" for none
	Landed, Duplicates, Undecodable int
}

// Enter locks the row of a partition for the rest of the transaction, and makes it if there is none. If an owner is named it has to
// have the partition, or the error is [ErrLeaseLost].
func (s Inboxes) Enter(ctx context.Context, tx bun.Tx, inbox, partition, owner string) error {
	query, args := "UPDATE bc_inbox SET updated_at = "+s.d.Now+" WHERE "+ofPartition, []any{inbox, partition}
	if owner != "" {
		query, args = query+" AND owner = ?", append(args, owner)
	}
	for try := 1; ; try++ {
		res, err := tx.ExecContext(ctx, query, args...)
		if err != nil {
			return fmt.Errorf("inbox: lock %s: %w", partition, err)
		}
		switch n, err := res.RowsAffected(); {
		case err != nil || n > 0:
			return err
		case owner != "" || try == 2:
			return fmt.Errorf("inbox: %s: %w", partition, ErrLeaseLost)
		}
		if err := s.make(ctx, tx, inbox, partition); err != nil {
			return err
		}
	}
}

// Add counts what a batch has brought.
func (s Inboxes) Add(ctx context.Context, tx bun.Tx, a Arrived) error {
	_, err := tx.ExecContext(ctx, "UPDATE bc_inbox SET landed = landed + ?, duplicates = duplicates + ?, undecodable = undecodable + ?, "+
		"last_offset = COALESCE(?, last_offset) WHERE "+ofPartition,
		a.Landed, a.Duplicates, a.Undecodable, nullText(a.Offset), a.Inbox, a.Partition)
	if err != nil {
		return fmt.Errorf("inbox: count what %s has brought: %w", a.Partition, err)
	}
	return nil
}

// Counts are the sums over the partitions of an inbox.
func (s Inboxes) Counts(ctx context.Context, idb bun.IDB, inbox string) (a Arrived, err error) {
	a.Inbox = inbox
	err = idb.QueryRowContext(ctx, "SELECT CAST(COALESCE(SUM(landed), 0) AS "+s.integer()+"), "+
		"CAST(COALESCE(SUM(duplicates), 0) AS "+s.integer()+"), CAST(COALESCE(SUM(undecodable), 0) AS "+s.integer()+") "+
		"FROM bc_inbox WHERE inbox = ?", inbox).
		Scan(&a.Landed, &a.Duplicates, &a.Undecodable)
	if err != nil {
		return a, fmt.Errorf("inbox: count: %w", err)
	}
	return a, nil
}

// integer is the type to which a sum is cast: MySQL's sums are decimal numbers.
func (s Inboxes) integer() string {
	if s.d.Name == "mysql" {
		return "SIGNED"
	}
	return "BIGINT"
}

// Bury makes an event of this transaction DEAD, with a delivery that says why, as of a consumer.
func (s Inboxes) Bury(ctx context.Context, tx bun.Tx, consumer, eventID, why string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO "+deliveryTable+
		" (consumer_name, event_id, event_type, outbox_id, aggregate_type, aggregate_id, attempts, status, error_message, first_run_at) "+
		"SELECT ?, e.event_id, e.event_type, e.id, e.aggregate_type, e.aggregate_id, "+
		"1, 'DEAD', ?, "+s.d.Now+" FROM "+s.d.ByEventID(eventTable)+" WHERE e.event_id = ?", consumer, why, eventID)
	if err == nil {
		_, err = tx.ExecContext(ctx, "UPDATE "+s.d.ByEventID(eventTable)+" SET status = 'DEAD', next_retry_at = NULL, last_error = ?, "+
			"updated_at = "+s.d.Now+" WHERE e.event_id = ?", why, eventID)
	}
	if err != nil {
		return fmt.Errorf("inbox: land %s as DEAD: %w", eventID, err)
	}
	return nil
}

// Open counts the events that are not done and not DEAD, up to a number, along the index of statuses.
func (s Inboxes) Open(ctx context.Context, idb bun.IDB, most int) (n int, err error) {
	for _, status := range []string{"NEW", "DISPATCHING", "FAILED"} {
		var some int
		err := idb.QueryRowContext(ctx, "SELECT COUNT(*) FROM (SELECT 1 FROM "+s.d.Due(eventTable)+" WHERE e.status = ? LIMIT ?) AS open",
			status, most-n).Scan(&some)
		if err != nil {
			return 0, fmt.Errorf("inbox: count open events: %w", err)
		}
		if n += some; n >= most {
			break
		}
	}
	return n, nil
}
