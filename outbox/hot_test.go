package outbox_test

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/outbox"
)

// hot makes a table whose rows, with ids from 0 on, transactions fight over.
func (f *fixture) hot(rows int) {
	f.t.Helper()
	f.exec("CREATE TABLE hot (id INT PRIMARY KEY, n INT NOT NULL)")
	for i := range rows {
		f.exec("INSERT INTO hot (id, n) VALUES (?, 0)", i)
	}
}

// holdHot begins a transaction that has locked all rows of hot.
func (f *fixture) holdHot() bun.Tx {
	f.t.Helper()
	holder, err := f.db.BeginTx(context.Background(), nil)
	require.NoError(f.t, err)
	_, err = holder.ExecContext(context.Background(), "UPDATE hot SET n = 1")
	require.NoError(f.t, err)
	return holder
}

// deadlock makes tx the victim of one, because the other side has changed more rows: meet is to ask, in tx, for row 2 of hot.
func (f *fixture) deadlock(ctx context.Context, tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, meet func() error,
) error {
	if _, err := tx.ExecContext(ctx, "UPDATE hot SET n = n + 1 WHERE id = 1"); err != nil {
		return err
	}
	locked := make(chan struct{})
	var once sync.Once
	unlock := func() { once.Do(func() { close(locked) }) }
	ctxOther, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer unlock()
		_ = f.db.RunInTx(ctxOther, &sql.TxOptions{}, func(ctx context.Context, other bun.Tx) error {
			if f.db.Dialect().Name().String() == "pg" {
				if _, err := other.ExecContext(ctx, "SET LOCAL deadlock_timeout = '10s'"); err != nil { // the other side is found first
					return err
				}
			}
			if _, err := other.ExecContext(ctx, "UPDATE hot SET n = n + 1 WHERE id >= 2"); err != nil {
				return err
			}
			unlock()
			_, err := other.ExecContext(ctx, "UPDATE hot SET n = n + 1 WHERE id = 1")
			return err
		})
	}()
	<-locked
	err := meet()
	if err == nil {
		stop() // or it would wait for this transaction
	}
	<-done
	stop()
	return err
}

// requireSecondRun tells that a delivery had one effect, that of its second run, which was not counted.
func (f *fixture) requireSecondRun(runs, refused *atomic.Int64) {
	f.t.Helper()
	require.EqualValues(f.t, 2, runs.Load(), "run again at once")
	require.EqualValues(f.t, 1, refused.Load(), "after the end statements are refused")
	f.requireOneEffectOfTheSecondRun()
	require.Equal(f.t, map[outbox.Status]int{outbox.StatusSent: 1}, f.statuses())
}

func (f *fixture) requireOneEffectOfTheSecondRun() {
	f.t.Helper()
	require.Equal(f.t, 1, f.count("SELECT COUNT(*) FROM effect"))
	require.Equal(f.t, 1, f.count("SELECT COUNT(*) FROM effect WHERE seq = 2"))
	require.Equal(f.t, 1, f.count("SELECT attempts FROM bc_event_consume_log"), "uncounted")
}
