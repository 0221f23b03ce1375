package outbox_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// Behind a pooler that gives each transaction any connection, which does not keep prepared statements,
// everything works as it does without one.
func TestBehindAPooler(t *testing.T) {
	t.Parallel()
	dsn := testdb.DSN(t, "postgres")
	direct := newFixture(t, migrated(t, dsn))
	direct.effects()
	f := newFixture(t, testdb.OpenDSN(t, testdb.PoolerDSN(t, dsn)+"&default_query_exec_mode=simple_protocol"))
	f.counting("A", bus.ConsumerConfig{})
	f.counting("B", bus.ConsumerConfig{})
	f.run(outbox.PublisherConfig{Poll: 10 * time.Millisecond})
	const producers, each = 8, 20
	var all sync.WaitGroup
	for p := range producers {
		all.Go(func() {
			for i := range each {
				assert.NoError(t, f.trySave(orderPaid{OrderID: fmt.Sprint(p), Seq: i}))
			}
		})
	}
	all.Wait()
	direct.eventually(func() bool { return direct.statuses()[outbox.StatusSent] == producers*each }, "all are delivered")
	require.Equal(t, 2*producers*each, direct.count("SELECT COUNT(*) FROM effect"))
	require.Zero(t, direct.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
}
