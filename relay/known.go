package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/spi"
)

const (
	// lookAfter is how long a relay may have heard nothing of its broker before it looks whether that is there.
	lookAfter = time.Minute
	// lookLimit is how long the look may take.
	lookLimit = 5 * time.Second
)

// known is what a relay knows of its broker.
type known struct {
	at Publisher

	mu      sync.Mutex
	is      spi.Broker
	heardAt time.Time // when the broker last answered, or did not; zero for never
}

// began counts messages that are unconfirmed from now on.
func (k *known) began(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.is.Unconfirmed += n
}

// ended counts those that are not any more, and keeps what their errors say of the broker.
func (k *known) ended(n int, errs []error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.is.Unconfirmed -= n
	var away error
	for _, err := range errs {
		switch {
		case bus.IsPermanent(err):
			k.is.Failed(err)
		case err != nil && away == nil:
			away = err
		}
	}
	k.heard(away)
}

// heard keeps an answer of the broker. It needs k.mu.
func (k *known) heard(err error) {
	k.heardAt = time.Now()
	k.is.Heard(err, errors.Is(err, ErrRefused))
}

// tell is what is known now. Where nothing was published for a while it asks the broker.
func (k *known) tell(ctx context.Context) spi.Broker {
	connection, ok := k.at.(Connection)
	if ok && k.isQuiet() {
		ctx, cancel := context.WithTimeout(ctx, lookLimit)
		defer cancel()
		err := connection.Connect(ctx)
		k.mu.Lock()
		k.heard(err)
		k.mu.Unlock()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	is := k.is
	is.Behind = -1
	if ok {
		is.Broker = connection.Broker()
	}
	if is.State == "" {
		is.State = spi.BrokerUnknown
	}
	return is
}

// isQuiet reports whether nothing was heard of the broker for a while.
func (k *known) isQuiet() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.is.Unconfirmed == 0 && time.Since(k.heardAt) > lookAfter
}
