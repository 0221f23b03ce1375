package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// paid is the event of all workloads, about 300 bytes of JSON.
type paid struct {
	OrderID string `json:"orderId"`
	Seq     int    `json:"seq"`
	Filler  string `json:"filler"`
}

var filler = strings.Repeat("x", 250)

func (paid) EventType() string              { return "order.paid" }
func (e paid) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

const (
	consumers    = 3
	perAggregate = 10
)

// event number i of n: ten events per aggregate, as far from each other as can be.
func event(i, n int) paid {
	aggregates := max(n/perAggregate, 1)
	return paid{OrderID: strconv.Itoa(i % aggregates), Seq: i / aggregates, Filler: filler}
}

// effects makes the table that every handler writes one row to. It has no key that could hide a
// doubled effect.
func (d *database) effects(ctx context.Context) error {
	return d.exec(ctx, d.pick(
		"CREATE TABLE business (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(64) NOT NULL)",
		"CREATE TABLE business (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name VARCHAR(64) NOT NULL)",
		"CREATE TABLE business (id INTEGER PRIMARY KEY, name TEXT NOT NULL)"), d.pick(
		"CREATE TABLE effect (id BIGINT AUTO_INCREMENT PRIMARY KEY, consumer SMALLINT NOT NULL, agg VARCHAR(32) NOT NULL, seq INT NOT NULL)",
		"CREATE TABLE effect (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, consumer SMALLINT NOT NULL, agg VARCHAR(32) NOT NULL, "+
			"seq INT NOT NULL)",
		"CREATE TABLE effect (id INTEGER PRIMARY KEY, consumer INTEGER NOT NULL, agg TEXT NOT NULL, seq INTEGER NOT NULL)"))
}

// check makes sure that nothing was lost or doubled and, if ordered, that nothing came out of order.
func (d *database) check(ctx context.Context, want int, ordered bool) error {
	return d.checkFirst(ctx, consumers, want, ordered)
}

// checkFirst checks the effects of the first consumers alone.
func (d *database) checkFirst(ctx context.Context, some, want int, ordered bool) error {
	effects := "effect WHERE consumer < " + strconv.Itoa(some)
	got, err := d.number(ctx, "SELECT COUNT(*) FROM "+effects)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%d effects, want %d", got, want)
	}
	distinct, err := d.number(ctx, "SELECT COUNT(*) FROM (SELECT DISTINCT consumer, agg, seq FROM "+effects+") t")
	if err != nil {
		return err
	}
	if distinct != want {
		return fmt.Errorf("%d effects of which %d are different", got, distinct)
	}
	if !ordered {
		return nil
	}
	wrong, err := d.number(ctx, "SELECT COUNT(*) FROM (SELECT seq, LAG(seq) OVER (PARTITION BY consumer, agg ORDER BY id) AS before_it "+
		"FROM "+effects+") t WHERE before_it > seq")
	if err == nil && wrong > 0 {
		err = errors.New(strconv.Itoa(wrong) + " effects out of order")
	}
	return err
}

// tuples writes n groups of placeholders, such as (?,?),(?,?) or ($1,$2),($3,$4).
func (d *database) tuples(n, width int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('(')
		for j := range width {
			if j > 0 {
				b.WriteByte(',')
			}
			b.WriteString(d.mark(i*width + j + 1))
		}
		b.WriteByte(')')
	}
	return b.String()
}

func (d *database) mark(n int) string {
	if d.dialect == "postgres" {
		return "$" + strconv.Itoa(n)
	}
	return "?"
}

// gathered waits until there are n effects. It does not count them, which takes long under load, before
// the highest id tells that it may be worth it: whoever asks seldom is late to see the end.
func (d *database) gathered(ctx context.Context, n int) error {
	if err := d.reach(ctx, "SELECT COALESCE(MAX(id), 0) FROM effect", n); err != nil {
		return err
	}
	return d.reach(ctx, "SELECT COUNT(*) FROM effect", n)
}

// reach waits until a query answers at least n. Asking takes a quarter of the time at most. It is not prepared:
// PostgreSQL would keep the plan for tables that are empty.
func (d *database) reach(ctx context.Context, query string, n int) error {
	for {
		asked := time.Now()
		var got int
		err := d.plain.QueryRowContext(ctx, query).Scan(&got)
		if err != nil || got >= n {
			return err
		}
		select {
		case <-time.After(max(20*time.Millisecond, 3*time.Since(asked))):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// until waits for something in memory, which costs nearly nothing to ask for.
func until(ctx context.Context, ok func() bool) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// settleDown waits for what the database does by itself after many rows were written: what is to be
// measured begins with tables that are as they would be after a while, not with the debt of filling them.
func (d *database) settleDown(ctx context.Context) error {
	switch d.dialect {
	case "postgres":
		return d.exec(ctx, "VACUUM ANALYZE", "CHECKPOINT")
	case "sqlite":
		return d.exec(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	}
	if err := d.exec(ctx, "SET GLOBAL innodb_max_dirty_pages_pct = 0"); err != nil {
		return err
	}
	err := d.flushed(ctx)
	return errors.Join(err, d.exec(context.WithoutCancel(ctx), "SET GLOBAL innodb_max_dirty_pages_pct = DEFAULT"))
}

// flushed waits until MariaDB has written nearly all of its pages.
func (d *database) flushed(ctx context.Context) error {
	const (
		few      = 1000 // of 16 KiB
		patience = 2 * time.Minute
	)
	for began := time.Now(); time.Since(began) < patience; {
		var name string
		var dirty int
		err := d.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'").Scan(&name, &dirty)
		if err != nil || dirty < few {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
