package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// limit is what can be had by hand: no retries, no order, no logs, no metrics. Claim in a short
// transaction, one transaction per consumer per batch, one bulk mark.
type limit struct {
	db       *database
	tables   tables
	workers  int
	batch    int
	multiRow bool // the handler takes the whole batch

	committed func(rows []claimed) // told after each delivery's commit, unless nil
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
	id                 int64
	payload            string
	eventID, aggregate string // in bluecone's tables
	event              paid
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
	_, err = l.db.ExecContext(ctx, l.mark(rows, l.tables.sent))
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
	found, err := tx.QueryContext(ctx, l.tables.due+" LIMIT "+strconv.Itoa(l.batch)+
		l.db.pick(" FOR UPDATE SKIP LOCKED", " FOR UPDATE SKIP LOCKED", ""))
	if err != nil {
		return nil, err
	}
	var rows []claimed
	for found.Next() {
		var r claimed
		if err := found.Scan(l.tables.columns(&r)...); err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	if err := found.Close(); err != nil || len(rows) == 0 {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, l.mark(rows, l.tables.leased)); err != nil {
		return nil, err
	}
	return rows, tx.Commit()
}

// mark is a bulk UPDATE by primary key.
func (l *limit) mark(rows []claimed, set string) string {
	among := "IN (" + idsOf(rows) + ")"
	if l.db.dialect == "postgres" {
		among = "= ANY (" + array(idsOf(rows), "bigint") + ")"
	}
	return "UPDATE " + l.tables.events + l.db.pick(" FORCE INDEX (PRIMARY)", "", "") + " SET " + set + " WHERE id " + among
}

func idsOf(rows []claimed) string {
	ids := make([]string, len(rows))
	for i, r := range rows {
		ids[i] = strconv.FormatInt(r.id, 10)
	}
	return strings.Join(ids, ",")
}

// array is a list as PostgreSQL reads it fastest: one literal instead of many.
func array(list, of string) string { return "'{" + list + "}'::" + of + "[]" }

func (l *limit) deliver(ctx context.Context, consumer int, rows []claimed) error {
	tx, err := l.begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, l.tables.done(consumer, rows)); err != nil {
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
