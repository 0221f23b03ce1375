// Package enroll tells the deployment which consumers this instance has.
//
// A publisher that starts looks first whether the tables are those of its release. Then it writes its consumers into the registry,
// and says every 30 seconds that they are alive.
package enroll

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// aliveEvery is how often the registry is told that this instance's consumers are alive.
const aliveEvery = 30 * time.Second

// Config is what an [Enrollment] works with.
type Config struct {
	DB        *bun.DB
	Consumers []*handler.Consumer // of this instance; nobody changes the slice
	Tables    *Tables
	Registry  *registry.Registry
	Roster    *registry.Roster // it is read once the consumers are registered
	Outage    *health.Outage
	Logger    *slog.Logger
	Limit     time.Duration // how long it waits for a silent database
}

// Enrollment writes the consumers of this instance into the registry. It is safe for concurrent use.
type Enrollment struct{ cfg Config }

// New returns the enrollment of one run of a publisher. It has written nothing yet.
func New(cfg Config) *Enrollment { return &Enrollment{cfg} }

// Consumers are those of this instance, in the order in which the enrollment was told them.
func (n *Enrollment) Consumers() []*handler.Consumer { return n.cfg.Consumers }

// Enroll registers the consumers. While the database is away it tries again, until ctx ends. If the tables are not those of this
// release, it does not wait for others: it returns a [store.TablesError]. Nor does it wait for a pool that is closed.
func (n *Enrollment) Enroll(ctx context.Context, silence *health.Silence) error {
	for try := 1; ; try++ {
		err := n.cfg.Tables.Check(ctx)
		if errors.As(err, new(*store.TablesError)) || errors.Is(err, dialect.ErrQuoting) {
			return err
		}
		if err == nil {
			err = n.Register(ctx)
		}
		if err == nil {
			if err = silence.Limit(ctx, n.cfg.Roster.Refresh); err == nil {
				n.cfg.Outage.End(ctx)
				return nil
			}
		}
		if err = n.cfg.Outage.Wait(ctx, err, try); err != nil {
			return err
		}
	}
}

// Register announces the consumers. It does not wait for a silent database.
func (n *Enrollment) Register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Limit)
	defer cancel()
	return n.Announce(ctx)
}

// Announce writes this instance's consumers into the registry, or renews that they are alive. Instances
// that do so at once go through the rows in one order.
func (n *Enrollment) Announce(ctx context.Context) error {
	sorted := slices.SortedFunc(slices.Values(n.cfg.Consumers), func(a, b *handler.Consumer) int { return strings.Compare(a.Key, b.Key) })
	if err := n.cfg.Registry.Announce(ctx, n.cfg.DB, announcements(sorted)); err != nil {
		return fmt.Errorf("outbox: register consumers %s: %w", Describe(sorted), err)
	}
	return nil
}

// KeepAlive renews in the registry that this instance's consumers are alive, until ctx ends or stop is closed.
func (n *Enrollment) KeepAlive(ctx context.Context, stop <-chan struct{}) {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-stop:
			return
		case <-tick.C:
		}
		if err := n.Register(ctx); err != nil && ctx.Err() == nil {
			n.cfg.Logger.Log(ctx, n.cfg.Outage.Level(ctx, err), "consumers could not be announced; it is tried again in a moment",
				telemetry.Err, err)
		}
	}
}

// TypesOf are the event types that each consumer of this process takes, by its key.
func TypesOf(consumers []*handler.Consumer) map[string][]string {
	types := make(map[string][]string, len(consumers))
	for _, c := range consumers {
		types[c.Key] = c.EventTypes()
	}
	return types
}

// announcements are what this instance says of its consumers.
func announcements(consumers []*handler.Consumer) (all []store.Announcement) {
	for _, c := range consumers {
		replays := c.Config.Replayable
		if replays { // so that its replays can be paused; they are expected of no event
			all = append(all, store.Announcement{Key: store.ReplayName(c.Key), Name: store.ReplayName(c.Name)})
		}
		all = append(all, store.Announcement{
			Key: c.Key, Name: c.Name, Types: c.EventTypes(), IsReplayable: replays, StartFrom: c.Config.StartFrom,
		})
	}
	return all
}

// mostNamed is how many consumers a log line names.
const mostNamed = 20

// Describe names consumers and their event types for a log line.
func Describe(consumers []*handler.Consumer) string {
	var names []string
	for _, c := range consumers[:min(len(consumers), mostNamed)] {
		names = append(names, c.Name+"("+strings.Join(c.EventTypes(), " ")+")")
	}
	if more := len(consumers) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
