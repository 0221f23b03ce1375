package inbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/relay"
)

// lagLimit is how long a broker may take to say how far the inbox is behind.
const lagLimit = 5 * time.Second

// known is what an inbox knows of its broker.
type known struct {
	mu sync.Mutex
	is spi.Broker
}

func (k *known) heard(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.is.Heard(err, errors.Is(err, relay.ErrRefused))
}

// failed keeps an error of the database.
func (k *known) failed(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.is.Failed(err)
}

// tell is what is known now, and asks the broker how far the inbox is behind.
func (in *Inbox) tell(ctx context.Context) spi.Broker {
	behind := int64(-1)
	if lagging, ok := in.subscriber.(relay.Lagging); ok {
		ctx, cancel := context.WithTimeout(ctx, lagLimit)
		defer cancel()
		n, err := lagging.Lag(ctx)
		in.known.heard(err)
		if err == nil && n >= 0 {
			behind = n
			in.metrics.lag.Record(ctx, n, metric.WithAttributes(attribute.String("source", in.cfg.Source)))
		}
	}
	in.known.mu.Lock()
	defer in.known.mu.Unlock()
	is := in.known.is
	is.Role, is.Name, is.Behind = spi.RoleInbox, in.cfg.Source, behind
	if connection, ok := in.subscriber.(relay.Connection); ok {
		is.Broker = connection.Broker()
	}
	if is.State == "" {
		is.State = spi.BrokerUnknown
	}
	return is
}
