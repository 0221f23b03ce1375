package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// aliveEvery is how often the registry is told that this instance's consumers are alive.
const aliveEvery = 30 * time.Second

// enrollment tells the deployment which consumers this instance has.
type enrollment struct {
	e         *Engine
	consumers []*handler.Consumer
	registry  *registry.Registry
	roster    *registry.Roster
	outage    *health.Outage
}

// enroll registers the consumers, for as long as it takes the database to answer. Tables that are not those of this
// release are not waited for: Run ends with a [store.TablesError].
func (n *enrollment) enroll(ctx context.Context, silence *health.Silence) error {
	for try := 1; ; try++ {
		err := n.checkTables(ctx)
		if errors.As(err, new(*store.TablesError)) || errors.Is(err, dialect.ErrQuoting) {
			return err
		}
		if err == nil {
			err = n.register(ctx)
		}
		if err == nil {
			if err = silence.Limit(ctx, n.roster.Refresh); err == nil {
				n.outage.End(ctx)
				return nil
			}
		}
		if !n.outage.Wait(ctx, err, try) {
			return ctx.Err()
		}
	}
}

// checkTables looks whether the database reads texts as they are written, and has the tables that this release works on,
// until it was seen to. It does not wait for a silent database.
func (n *enrollment) checkTables(ctx context.Context) error {
	if n.e.areTablesSeen.Load() {
		return nil
	}
	cfg := &n.e.cfg
	ctx, cancel := context.WithTimeout(ctx, cfg.Lease)
	defer cancel()
	err := cfg.Quoting.Check(ctx, cfg.DB)
	if err == nil {
		err = store.CheckTables(ctx, cfg.DB, cfg.Dialect)
	}
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	n.e.areTablesSeen.Store(true)
	return nil
}

// register announces the consumers. It does not wait for a silent database.
func (n *enrollment) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.e.cfg.Lease)
	defer cancel()
	return n.announce(ctx)
}

// announce writes this instance's consumers into the registry, or renews that they are alive. Instances
// that do so at once go through the rows in one order.
func (n *enrollment) announce(ctx context.Context) error {
	sorted := slices.SortedFunc(slices.Values(n.consumers), func(a, b *handler.Consumer) int { return strings.Compare(a.Key, b.Key) })
	if err := n.registry.Announce(ctx, n.e.cfg.DB, announcements(sorted)); err != nil {
		return fmt.Errorf("outbox: register consumers %s: %w", describe(sorted), err)
	}
	return nil
}

// keepAlive renews in the registry that this instance's consumers are alive.
func (n *enrollment) keepAlive(ctx context.Context, stop <-chan struct{}) {
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
		if err := n.register(ctx); err != nil && ctx.Err() == nil {
			n.e.cfg.Logger.Log(ctx, n.outage.Level(ctx, err), "consumers could not be announced; the next beat tries again", telemetry.Err, err)
		}
	}
}

// typesOf are the event types that each consumer of this process takes, by its key.
func typesOf(consumers []*handler.Consumer) map[string][]string {
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

// describe names consumers for a log line.
func describe(consumers []*handler.Consumer) string {
	var names []string
	for _, c := range consumers[:min(len(consumers), mostNamed)] {
		names = append(names, c.Name+"("+strings.Join(c.EventTypes(), " ")+")")
	}
	if more := len(consumers) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// brokers tell what is known of those that consumers of this instance give events to.
func (n *enrollment) brokers() (read []func(ctx context.Context) store.Broker) {
	for _, c := range n.consumers {
		if c.Broker != nil {
			read = append(read, c.Broker)
		}
	}
	return read
}
