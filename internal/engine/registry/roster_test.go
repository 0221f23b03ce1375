package registry_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// A roster knows what the registry said when it was last refreshed, and who is paused; a malformed row is reported once.
func TestARosterKnowsWhatTheRegistryLastSaid(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d, err := dialect.Of(db)
		require.NoError(t, err)
		g := open(t, db, nil)
		require.NoError(t, g.Announce(t.Context(), db, []store.Announcement{
			{Key: "A", Name: "A", Types: []string{"a"}}, {Key: "B", Name: "B", Types: []string{"b"}},
		}))
		var log bytes.Buffer
		r := registry.NewRoster(db, g, registry.NewMalformedRows(slog.New(slog.NewTextHandler(&log, nil))))
		all, age := r.Last()
		require.Nil(t, all)
		require.Greater(t, age, 24*time.Hour, "nobody has read it")
		require.False(t, r.IsPaused("A"))

		change := func(query string, args ...any) {
			t.Helper()
			_, err := db.ExecContext(t.Context(), query, args...)
			require.NoError(t, err)
		}
		change("UPDATE bc_consumer SET paused_until = "+d.After+" WHERE name = 'A'", dialect.Micro(time.Hour))
		require.False(t, r.IsPaused("A"), "it has not been refreshed")
		require.NoError(t, r.Refresh(t.Context()))
		require.True(t, r.IsPaused("A"))
		require.False(t, r.IsPaused("B"))
		require.False(t, r.IsPaused("unknown"))
		all, age = r.Last()
		require.Len(t, all.Consumers, 2)
		require.Less(t, age, time.Hour)
		require.NoError(t, r.Refresh(t.Context()))
		again, _ := r.Last()
		require.Same(t, all, again, "nothing has changed")
		require.Empty(t, log.String())

		change("UPDATE bc_consumer SET paused_until = NULL WHERE name = 'A'")
		change(`UPDATE bc_consumer SET event_types = '{"b": 1}' WHERE name = 'B'`)
		require.NoError(t, r.Refresh(t.Context()))
		require.False(t, r.IsPaused("A"))
		change(`UPDATE bc_consumer SET event_types = '{"b": 12}' WHERE name = 'B'`)
		require.NoError(t, r.Refresh(t.Context()))
		require.Equal(t, 1, strings.Count(log.String(), "retire the consumer"), log.String())

		change("DROP TABLE bc_consumer_type")
		require.Error(t, r.Refresh(t.Context()))
		require.Error(t, g.Announce(t.Context(), db, []store.Announcement{{Key: "A", Name: "A", Types: []string{"a"}}}))
		change("DROP TABLE bc_consumer")
		require.Error(t, g.Announce(t.Context(), db, []store.Announcement{{Key: "A", Name: "A"}}))
		last, _ := r.Last()
		require.Len(t, last.Consumers, 2, "what was known is known still")
	})
}
