//go:build cgo

package gormtx_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/bluecone-go/bluecone/adapter/gormtx"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/txtest"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// A database that gorm opens by its own driver of SQLite works as well, and its errors are understood.
func TestTheDriverInC(t *testing.T) {
	t.Parallel()
	db, err := gorm.Open(sqlite.Open("file:"+filepath.Join(t.TempDir(), "shop.db")+"?_txlock=immediate&_busy_timeout=10000&_journal_mode=WAL"),
		&gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	bdb, err := outbox.Open(t.Context(), pool)
	require.NoError(t, err)
	quiet := slog.New(slog.DiscardHandler)
	ob, err := outbox.New(bdb, outbox.Config{Logger: quiet})
	require.NoError(t, err)
	save := func() error {
		return db.Transaction(func(tx *gorm.DB) error { return gormtx.Save(t.Context(), ob, tx, txtest.Paid{Order: "1"}) })
	}
	b := bus.New(bdb, bus.Config{Logger: quiet})
	gormtx.On(b.Consumer("A", bus.ConsumerConfig{}), db, func(_ context.Context, tx *gorm.DB, _ bus.Message[txtest.Paid]) error {
		return tx.Exec("UPDATE accounts SET points = points + 1").Error
	})
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	require.NoError(t, err)
	require.ErrorContains(t, save(), "run migrations.Up")
	require.ErrorContains(t, pub.Run(t.Context()), "run migrations.Up")

	require.NoError(t, migrations.Up(t.Context(), bdb))
	require.NoError(t, db.Exec("CREATE TABLE accounts (id INTEGER PRIMARY KEY, points INTEGER NOT NULL)").Error)
	require.NoError(t, db.Exec("INSERT INTO accounts VALUES (1, 0)").Error)
	require.NoError(t, save())
	_, err = pub.RunOnce(t.Context())
	require.NoError(t, err)
	var points int
	require.NoError(t, db.Raw("SELECT points FROM accounts").Scan(&points).Error)
	require.Equal(t, 1, points)
}
