package view_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// The partitions of inboxes are listed with their counts, and with the instance that has one now.
func TestInboxesAreListed(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		ctx, inboxes, list := f.t.Context(), store.NewInboxes(f.D), must[[]view.Inbox](f.t)
		require.Empty(f.t, list(view.Inboxes(ctx, f.Reader, 10)))
		for _, partition := range []string{"orders/1", "orders/0"} {
			is, err := inboxes.Own(ctx, f.db, "shop", partition, "one", time.Hour)
			require.NoError(f.t, err)
			require.True(f.t, is)
		}
		require.NoError(f.t, f.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			return inboxes.Add(ctx, tx, store.Arrived{
				Inbox: "shop", Partition: "orders/0", Offset: "42", Landed: 7, Duplicates: 2, Undecodable: 1,
			})
		}))
		f.exec("UPDATE bc_inbox SET owned_until = "+f.D.After+" WHERE partition_name = 'orders/1'", -int64(time.Minute/time.Microsecond))
		found := list(view.Inboxes(ctx, f.Reader, 10))
		require.Len(f.t, found, 2)
		f.ago(0, found[0].SeenAt)
		require.Equal(f.t, view.Inbox{
			Name: "shop", Partition: "orders/0", Offset: "42", Owner: "one", Landed: 7, Duplicates: 2, Undecodable: 1, SeenAt: found[0].SeenAt,
		}, found[0])
		require.Equal(f.t, view.Inbox{Name: "shop", Partition: "orders/1", SeenAt: found[1].SeenAt}, found[1], "its time is over")
		require.Len(f.t, list(view.Inboxes(ctx, f.Reader, 1)), 1)
	})
}
