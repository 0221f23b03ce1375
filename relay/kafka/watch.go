package kafka

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// watch says once that a broker of the cluster is away, and once that it is back. The client looks for it by itself.
type watch struct {
	log  *slog.Logger
	mu   sync.Mutex
	away map[string]bool // by address
}

// OnBrokerConnect is called by the client after it has tried to connect to a broker.
func (w *watch) OnBrokerConnect(broker kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if errors.Is(err, context.Canceled) || needsPerson(err) {
		return // it was told to end, or the broker is there and refuses us, which who asked is told
	}
	address := net.JoinHostPort(broker.Host, strconv.Itoa(int(broker.Port)))
	w.mu.Lock()
	wasAway := w.away[address]
	w.away[address] = err != nil
	w.mu.Unlock()
	switch {
	case err != nil && !wasAway:
		w.log.Warn("a broker is away, it is looked for", "address", address, "error", err)
	case err == nil && wasAway:
		w.log.Info("a broker is back", "address", address)
	}
}
