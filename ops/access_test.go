package ops_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
)

// gauge counts the statements under way, and lets each of them take its time.
type gauge struct {
	mu            sync.Mutex
	now, most, of int
}

func (g *gauge) BeforeQuery(ctx context.Context, ev *bun.QueryEvent) context.Context {
	if !strings.HasPrefix(ev.Query, "SELECT") {
		return ctx
	}
	g.mu.Lock()
	g.now++
	g.of++
	g.most = max(g.most, g.now)
	g.mu.Unlock()
	<-time.After(5 * time.Millisecond)
	return ctx
}

func (g *gauge) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if strings.HasPrefix(ev.Query, "SELECT") {
		g.mu.Lock()
		g.now--
		g.mu.Unlock()
	}
}

func (g *gauge) statements() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.of
}

// However many readers there are, they use two connections, and those who ask the same get one answer.
func TestReadersTakeTurnsAndShareAnswers(t *testing.T) {
	t.Parallel()
	dsn := testdb.DSN(t, "postgres")
	f := newFixture(t, testdb.OpenDSN(t, dsn), ops.Config{})
	require.NoError(t, migrate(t, f.db))
	f.consumers().save(paid{OrderID: "7"})
	f.once()
	g := &gauge{}
	f.db.AddQueryHook(g) //nolint:staticcheck // this very pool
	var readers sync.WaitGroup
	for i := range 20 {
		readers.Go(func() {
			if _, err := f.ops.Events(t.Context(), ops.Query{Limit: 1 + i}); err != nil {
				t.Errorf("reader %d: %v", i, err)
			}
		})
	}
	readers.Wait()
	require.Equal(t, 2, g.most)

	before := g.statements()
	_, err := f.ops.Events(t.Context(), ops.Query{TenantID: 1})
	require.NoError(t, err)
	each := g.statements() - before
	for range 20 {
		readers.Go(func() {
			if _, err := f.ops.Events(t.Context(), ops.Query{TenantID: 2}); err != nil {
				t.Errorf("reader: %v", err)
			}
		})
	}
	readers.Wait()
	require.Less(t, g.statements()-before, 10*each, "twenty who ask the same do not read twenty times")
}

// What one has just written, one reads.
func TestAWriterSeesItsChange(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "sqlite"), ops.Config{}).consumers()
	f.save(paid{OrderID: "7", Note: "die"})
	f.once()
	groups, err := f.ops.Dead(t.Context())
	require.NoError(t, err)
	require.Len(t, groups, 1)
	require.NoError(t, f.ops.Skip(t.Context(), op, paidID("7"), "Moody"))
	groups, err = f.ops.Dead(t.Context())
	require.NoError(t, err)
	require.Empty(t, groups)
}
