package doctor

import (
	"context"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Broker is an end of a relay or an inbox at a message broker that tells by which settings that may lose what it has confirmed: the
// publishers and subscribers of relay/kafka, relay/nats and relay/redis.
type Broker interface {
	// Broker says where the broker is.
	Broker() string
	// Examine finds settings that lose messages, one sentence each.
	Examine(ctx context.Context) ([]string, error)
}

// brokerLimit is how long a broker may take to be examined.
const brokerLimit = 10 * time.Second

// brokers finds relays and inboxes that do not reach theirs, and settings of brokers that lose messages.
func brokers(ctx context.Context, x *exam) ([]Finding, error) {
	var found []Finding
	for _, b := range x.cfg.Brokers {
		found = append(found, examined(ctx, b)...)
	}
	links, err := view.Brokers(ctx, x.sql, most, longestName)
	for _, l := range links {
		if l.IsGone() || l.State != store.BrokerAway && l.State != store.BrokerRefuses {
			continue
		}
		found = append(found, warn("broker_unreachable", "{name} in {instance} does not get through to {broker}: {problem}",
			"see that the broker runs and takes the credentials, and has what the URL names (bluecone brokers list)",
			values{"name": l.Name, "instance": l.Instance, "broker": l.Broker, "problem": l.Error})...)
	}
	return found, err
}

func examined(ctx context.Context, b Broker) (found []Finding) {
	ctx, cancel := context.WithTimeout(ctx, brokerLimit)
	defer cancel()
	settings, err := b.Examine(ctx)
	if err != nil {
		return warn("broker_unexamined", "{broker} could not be examined: {problem}",
			"see that it runs, and that the user may read its settings", values{"broker": b.Broker(), "problem": text.Error(err)})
	}
	for _, s := range settings {
		found = append(found, warn("broker_setting", "{broker}: {problem}", "change the setting, or make sure that nothing is lost by it",
			values{"broker": b.Broker(), "problem": s})...)
	}
	return found
}
