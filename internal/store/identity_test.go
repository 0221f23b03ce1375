package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/store"
)

// What an event is stands in its row: one that has none is not among the answers.
func TestIdentitiesAreThoseOfRows(t *testing.T) {
	t.Parallel()
	eachLog(t, func(f logFixture) {
		f.event("a", "1")
		f.event("b", "2")
		f.event("other", "3")
		got, err := store.Identities(f.t.Context(), f.db, f.d, []string{"a", "b", "nobody"})
		require.NoError(f.t, err)
		require.Equal(f.t, map[string]store.Identity{
			"a": {Type: "a.b", AggregateType: "A", AggregateID: "1", TenantID: 7},
			"b": {Type: "a.b", AggregateType: "A", AggregateID: "2", TenantID: 7},
		}, got)
	})
}
