package simulation

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/outbox"
)

// quietLife is one without a plan, faults and a journal: for tests that start their processes themselves, inside of a bubble.
func quietLife(t *testing.T, s *store) *life {
	t.Helper()
	l := newLife(s, plan{})
	l.t, l.began, l.writer, l.logger = t, time.Now(), make(chan struct{}, 1), slog.New(slog.DiscardHandler)
	return l
}

// process is an instance with default settings in a quiet life.
type process struct {
	t     *testing.T
	db    *bun.DB
	ob    *outbox.Outbox
	pub   *outbox.Publisher
	ended chan error
}

// process makes one on a line without faults, with what register wants of its bus. It does not run yet.
func (l *life) process(name string, register func(*bus.Bus), hooks ...bun.QueryHook) *process {
	l.t.Helper()
	p := &process{t: l.t, db: l.connect(name, true).open(), ended: make(chan error, 1)}
	for _, h := range hooks {
		p.db.AddQueryHook(h) //nolint:staticcheck // the engine's own statements are counted
	}
	var err error
	p.ob, err = outbox.New(p.db, outbox.Config{Logger: l.logger})
	require.NoError(l.t, err)
	b := bus.New(p.db, bus.Config{Logger: l.logger})
	register(b)
	p.pub, err = outbox.NewPublisher(p.ob, b, outbox.PublisherConfig{})
	require.NoError(l.t, err)
	return p
}

// run runs the process until ctx ends.
func (p *process) run(ctx context.Context) { go func() { p.ended <- bus.Run(ctx, p.pub) }() }

// save saves an event in a transaction of its own.
func (p *process) save(ctx context.Context, n int, of string) error {
	return p.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		return p.ob.Save(ctx, tx, happened{N: n, Of: of})
	})
}

// end waits until the process has ended. Whoever fails in a bubble must leave nobody waiting: first end, then look.
func (p *process) end() {
	p.t.Helper()
	require.NoError(p.t, <-p.ended)
	require.NoError(p.t, p.db.Close())
}
