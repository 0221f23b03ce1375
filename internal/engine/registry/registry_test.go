package registry_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func open(t *testing.T, db *bun.DB, local map[string][]string) *registry.Registry {
	t.Helper()
	d, err := dialect.Of(db)
	require.NoError(t, err)
	return registry.New(store.NewRegistry(d, prepared.New(db)), local)
}

func read(t *testing.T, db *bun.DB, g *registry.Registry) *registry.Snapshot {
	t.Helper()
	all, now, err := g.Read(t.Context(), db)
	require.NoError(t, err)
	require.Positive(t, now)
	return all
}

// Consumers that only other instances can call are those that are not known here, or not with the type.
func TestWhoTakesWhat(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		here := open(t, db, map[string][]string{"Both": {"a"}, "Here": {"a", "b"}})
		require.Empty(t, read(t, db, here).Consumers)
		require.NoError(t, here.Announce(t.Context(), db, []store.Announcement{
			{Key: "Here", Name: "Here", Types: []string{"b", "a"}, IsReplayable: true},
			{Key: "Both", Name: "Both", Types: []string{"a"}},
			{Key: "Here replay", Name: "Here replay"},
		}))
		all := read(t, db, here)
		require.Equal(t, []registry.Consumer{
			{Key: "Both", Types: []string{"a"}}, {Key: "Here", Types: []string{"a", "b"}}, {Key: "Here replay"},
		}, all.Consumers)
		require.Empty(t, all.Elsewhere)

		there := open(t, db, nil)
		require.NoError(t, there.Announce(t.Context(), db, []store.Announcement{
			{Key: "There", Name: "There", Types: []string{"b"}}, {Key: "Both", Name: "Both", Types: []string{"c"}},
		}))
		all = read(t, db, here)
		require.Equal(t, map[string][]string{"b": {"There"}, "c": {"Both"}}, all.Elsewhere)
		require.Same(t, all, read(t, db, here), "nothing has changed")
		require.Equal(t, map[string][]string{"a": {"Both", "Here"}, "b": {"Here", "There"}, "c": {"Both"}}, read(t, db, there).Elsewhere)
	})
}

// What is paused is read again. Of a row that is malformed only the types in bc_consumer_type are known.
func TestPausedAndMalformedConsumers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		g := open(t, db, nil)
		require.NoError(t, g.Announce(t.Context(), db, []store.Announcement{
			{Key: "A", Name: "A", Types: []string{"a"}}, {Key: "B", Name: "B", Types: []string{"b"}},
		}))
		require.False(t, read(t, db, g).Consumers[0].IsPaused)
		d, err := dialect.Of(db)
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), "UPDATE bc_consumer SET paused_until = "+d.After+" WHERE name = 'A'", 3_600_000_000)
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), `UPDATE bc_consumer SET event_types = '{"b": 1}' WHERE name = 'B'`)
		require.NoError(t, err)
		all := read(t, db, g)
		require.True(t, all.Consumers[0].IsPaused)
		require.Equal(t, registry.Consumer{Key: "B", Types: []string{"b"}}, all.Consumers[1])
		require.Len(t, all.Malformed, 1)
		require.Error(t, all.Malformed["B"])
	})
}
