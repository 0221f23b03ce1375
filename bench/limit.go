package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// limit is what can be had by hand: slim tables, no retries, no order, no logs, no metrics. Claim
// in a short transaction, one transaction per consumer per batch, one bulk mark.
type limit struct {
	db       *database
	workers  int
	batch    int
	multiRow bool // the handler takes the whole batch

	committed func(rows []claimed) // told after each delivery's commit, unless nil
}

func (l *limit) prepare(ctx context.Context, n int) error {
	err := l.db.exec(ctx,
		l.db.pick(
			"CREATE TABLE lim_event (id BIGINT AUTO_INCREMENT PRIMARY KEY, status TINYINT NOT NULL, next_retry_at DATETIME(3) NOT NULL, payload VARCHAR(600) NOT NULL, KEY k (status, next_retry_at))",
			"CREATE TABLE lim_event (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status SMALLINT NOT NULL, next_retry_at timestamptz NOT NULL, payload TEXT NOT NULL)",
			"CREATE TABLE lim_event (id INTEGER PRIMARY KEY, status INTEGER NOT NULL, next_retry_at TEXT NOT NULL, payload TEXT NOT NULL)"),
		"CREATE TABLE lim_done (consumer SMALLINT NOT NULL, event_id BIGINT NOT NULL, PRIMARY KEY (consumer, event_id))"+l.db.pick("", "", " WITHOUT ROWID"),
	)
	if err == nil && l.db.dialect != "mysql" {
		err = l.db.exec(ctx, "CREATE INDEX lim_k ON lim_event (next_retry_at, id) WHERE status = 0")
	}
	for i := 0; i < n && err == nil; i += 1000 {
		err = l.save(ctx, i, min(1000, n-i), n)
	}
	return err
}

func (l *limit) save(ctx context.Context, from, count, n int) error {
	var b strings.Builder
	b.WriteString("INSERT INTO lim_event (status, next_retry_at, payload) VALUES ")
	for i := range count {
		payload, err := json.Marshal(event(from+i, n))
		if err != nil {
			return err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("(0," + l.now() + ",'" + string(payload) + "')")
	}
	return l.db.exec(ctx, b.String())
}

func (l *limit) now() string {
	return l.db.pick("UTC_TIMESTAMP(3)", "now()", "strftime('%Y-%m-%d %H:%M:%f','now')")
}

func (l *limit) drain(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for range l.workers {
		g.Go(func() error {
			for {
				n, err := l.cycle(ctx, consumers)
				if err != nil || n == 0 {
					return err
				}
			}
		})
	}
	return g.Wait()
}

type claimed struct {
	id      int64
	payload string
	event   paid
}

// cycle claims a batch, delivers it to each consumer, and marks it.
func (l *limit) cycle(ctx context.Context, consumers int) (int, error) {
	rows, err := l.claim(ctx)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	for c := range consumers {
		if err := l.deliver(ctx, c, rows); err != nil {
			return 0, err
		}
	}
	_, err = l.db.ExecContext(ctx, l.mark(rows, "status = 2"))
	return len(rows), err
}

func (l *limit) begin(ctx context.Context) (*sql.Tx, error) {
	if l.db.dialect == "sqlite" {
		return l.db.BeginTx(ctx, nil)
	}
	return l.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
}

func (l *limit) claim(ctx context.Context) ([]claimed, error) {
	tx, err := l.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }()
	found, err := tx.QueryContext(ctx, "SELECT id, payload FROM lim_event WHERE status = 0 AND next_retry_at <= "+l.now()+" ORDER BY next_retry_at, id LIMIT "+strconv.Itoa(l.batch)+
		l.db.pick(" FOR UPDATE SKIP LOCKED", " FOR UPDATE SKIP LOCKED", ""))
	if err != nil {
		return nil, err
	}
	var rows []claimed
	for found.Next() {
		var r claimed
		if err := found.Scan(&r.id, &r.payload); err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	if err := found.Close(); err != nil || len(rows) == 0 {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, l.mark(rows, "status = 1")); err != nil {
		return nil, err
	}
	return rows, tx.Commit()
}

// mark is a bulk UPDATE by primary key.
func (l *limit) mark(rows []claimed, set string) string {
	ids := make([]string, len(rows))
	for i, r := range rows {
		ids[i] = strconv.FormatInt(r.id, 10)
	}
	return "UPDATE lim_event" + l.db.pick(" FORCE INDEX (PRIMARY)", "", "") + " SET " + set + " WHERE id IN (" + strings.Join(ids, ",") + ")"
}

func (l *limit) deliver(ctx context.Context, consumer int, rows []claimed) error {
	tx, err := l.begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	var done strings.Builder
	for i, r := range rows {
		if i > 0 {
			done.WriteByte(',')
		}
		done.WriteString("(" + strconv.Itoa(consumer) + "," + strconv.FormatInt(r.id, 10) + ")")
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO lim_done (consumer, event_id) VALUES "+done.String()); err != nil {
		return err
	}
	width := 1
	if l.multiRow {
		width = len(rows)
	}
	for i := 0; i < len(rows); i += width {
		args := make([]any, 0, 3*width)
		for j := i; j < i+width; j++ {
			e := &rows[j].event
			if err := json.Unmarshal([]byte(rows[j].payload), e); err != nil {
				return err
			}
			args = append(args, consumer, e.OrderID, e.Seq)
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, agg, seq) VALUES "+l.db.tuples(width, 3), args...); err != nil {
			return err
		}
	}
	err = tx.Commit()
	if err == nil && l.committed != nil {
		l.committed(rows)
	}
	return err
}

// saveOne saves one event in a business transaction.
func (l *limit) saveOne(ctx context.Context, tx txn, e paid) error {
	payload, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return tx.exec(ctx, "INSERT INTO lim_event (status, next_retry_at, payload) VALUES (0, "+l.now()+", "+l.db.mark(1)+")", string(payload))
}
