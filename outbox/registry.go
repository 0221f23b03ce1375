package outbox

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/store"
)

// typesOf are the event types that each consumer of this process takes, by its key.
func typesOf(consumers []*bus.Consumer) map[string][]string {
	types := make(map[string][]string, len(consumers))
	for _, c := range consumers {
		types[c.Key()] = c.EventTypes()
	}
	return types
}

// announceConsumers writes this instance's consumers into the registry, or renews that they are alive. Instances
// that do so at once go through the rows in one order.
func (s *session) announceConsumers(ctx context.Context) error {
	sorted := slices.SortedFunc(slices.Values(s.consumers), func(a, b *bus.Consumer) int { return strings.Compare(a.Key(), b.Key()) })
	if err := s.registry.Announce(ctx, s.p.ob.db, announcements(sorted)); err != nil {
		return fmt.Errorf("outbox: register consumers %s: %w", describe(sorted), err)
	}
	return nil
}

// announcements are what this instance says of its consumers.
func announcements(consumers []*bus.Consumer) (all []store.Announcement) {
	for _, c := range consumers {
		if c.Replayable() { // so that its replays can be paused; they are expected of no event
			all = append(all, store.Announcement{Key: store.ReplayName(c.Key()), Name: store.ReplayName(c.Name())})
		}
		all = append(all, store.Announcement{Key: c.Key(), Name: c.Name(), Types: c.EventTypes(), IsReplayable: c.Replayable()})
	}
	return all
}

// mostNamed is how many consumers a log line names.
const mostNamed = 20

// describe names consumers for a log line.
func describe(consumers []*bus.Consumer) string {
	var names []string
	for _, c := range consumers[:min(len(consumers), mostNamed)] {
		names = append(names, c.Name()+"("+strings.Join(c.EventTypes(), " ")+")")
	}
	if more := len(consumers) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
