package health

import (
	"context"
	"log/slog"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

// brokerEvery is how often what has changed is written at most; what has not is written every [store.BrokerBeat].
const brokerEvery = 5 * time.Second

// Brokers says in bc_broker what this instance knows of the brokers of its relays, or of its inbox. An instance that ends
// in order removes its rows; a row that remains tells of a crash, for a day.
type Brokers struct {
	DB       *bun.DB
	Rows     store.Brokers
	Logger   *slog.Logger
	Instance string
}

// Run writes what read returns until stop is closed. read may ask the broker; it gets a context that ends with stop.
func (b Brokers) Run(stop <-chan struct{}, read ...func(ctx context.Context) store.Broker) {
	if len(read) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-stop
		cancel()
	}()
	b.beat(func(ctx context.Context) error { return b.Rows.Forget(ctx, b.DB, beatKept) })
	last := make([]noted, len(read))
	tick := time.NewTicker(brokerEvery)
	defer tick.Stop()
	for {
		for i := range read {
			b.note(ctx, &last[i], read[i])
		}
		select {
		case <-tick.C:
		case <-stop:
			for _, is := range last {
				b.beat(func(ctx context.Context) error { return b.Rows.Remove(ctx, b.DB, b.Instance, is.Broker) })
			}
			return
		}
	}
}

// noted is what stands in a row, and since when.
type noted struct {
	store.Broker
	at time.Time
}

func (b Brokers) note(ctx context.Context, last *noted, read func(ctx context.Context) store.Broker) {
	is := read(ctx)
	is.Name, is.Broker, is.Error = text.Clean(is.Name, 128), text.Clean(is.Broker, 255), text.Clean(is.Error, text.MaxError)
	if ctx.Err() != nil || is == last.Broker && time.Since(last.at) < store.BrokerBeat {
		return
	}
	b.beat(func(ctx context.Context) error {
		err := b.Rows.Put(ctx, b.DB, b.Instance, is)
		if err == nil {
			*last = noted{is, time.Now()}
		}
		return err
	})
}

// beat writes once and only logs an error: nothing but the console and the doctor reads the row.
func (b Brokers) beat(write func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), beatTimeout)
	defer cancel()
	if err := write(ctx); err != nil {
		b.Logger.DebugContext(ctx, "what is known of a broker could not be written; it is tried again in a moment", telemetry.Err, err)
	}
}
