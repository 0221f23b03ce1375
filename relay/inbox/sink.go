package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/relay"
)

// countFor is how long an answer to the question how many events are open holds.
const countFor = 250 * time.Millisecond

// sink is the inbox as its subscriber sees it.
type sink struct{ *Inbox }

// Ready waits until there is room, and for the partition.
func (s sink) Ready(ctx context.Context, partition string) error {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		is, err := s.isReady(ctx, partition)
		if ctx.Err() != nil || is {
			return ctx.Err()
		}
		if err != nil {
			s.cfg.Logger.WarnContext(ctx, "inbox waits for the database", "source", s.cfg.Source, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (s sink) isReady(ctx context.Context, partition string) (bool, error) {
	if !s.isFresh() {
		n, err := s.land.Open(ctx, s.cfg.Open)
		if err != nil || n >= s.cfg.Open {
			return false, err
		}
		s.mu.Lock()
		s.counted = time.Now()
		s.mu.Unlock()
	}
	if partition == "" {
		return true, nil
	}
	owns, err := s.land.Own(ctx, s.cfg.Source, partition, 2*relay.Turn)
	if owns {
		s.mu.Lock()
		s.owned[partition] = true
		s.mu.Unlock()
	}
	return owns, err
}

// isFresh reports whether there was room a moment ago.
func (s sink) isFresh() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.counted) < countFor
}

// Away keeps why nothing comes.
func (s sink) Away(err error) { s.known.heard(err) }

// Land commits messages of one partition, many by one transaction.
func (s sink) Land(ctx context.Context, batch []relay.Received) error {
	for len(batch) > 0 {
		some := first(batch)
		batch = batch[len(some):]
		events := make([]spi.Event, 0, len(some))
		for _, r := range some {
			if e, ok := s.event(r); ok {
				events = append(events, e)
			}
		}
		err := s.commit(ctx, some, events)
		if errors.Is(err, spi.ErrData) {
			err = s.commitEach(ctx, some)
		}
		if err != nil {
			s.known.failed(err)
			s.cfg.Logger.WarnContext(ctx, "inbox could not land messages; they come again", "source", s.cfg.Source, "count", len(some), "error", err)
			return err
		}
	}
	s.known.heard(nil)
	return nil
}

// first are as many messages as one transaction lands.
func first(batch []relay.Received) []relay.Received {
	bytes := 0
	for i, r := range batch {
		if bytes += len(r.Body); i == mostPerCommit || i > 0 && bytes > mostBytesPerCommit {
			return batch[:i]
		}
	}
	return batch
}

// commitEach lands messages one by one, because the database does not take what one of them holds.
func (s sink) commitEach(ctx context.Context, batch []relay.Received) error {
	for i, r := range batch {
		e, ok := s.event(r)
		if !ok {
			continue
		}
		err := s.commit(ctx, batch[i:i+1], []spi.Event{e})
		if errors.Is(err, spi.ErrData) {
			err = s.commit(ctx, batch[i:i+1], []spi.Event{s.undecodable(r, err)})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s sink) commit(ctx context.Context, from []relay.Received, events []spi.Event) error {
	last := from[len(from)-1]
	s.mu.Lock()
	owned := s.owned[last.Partition]
	s.mu.Unlock()
	n, err := s.land.Land(ctx, spi.Batch{
		Inbox: s.cfg.Source, Partition: last.Partition, Offset: last.Offset, IsOwned: owned, DeadConsumer: s.cfg.Source, Events: events,
	})
	if err != nil {
		return err
	}
	with := metric.WithAttributes(attribute.String("source", s.cfg.Source))
	s.metrics.landed.Add(ctx, int64(n.Landed), with)
	s.metrics.duplicates.Add(ctx, int64(n.Duplicates), with)
	s.metrics.undecodable.Add(ctx, int64(n.Undecodable), with)
	return nil
}

// event is what a message lands as, or false if it does not.
func (s sink) event(r relay.Received) (spi.Event, bool) {
	e, err := s.read(r, "")
	if errors.Is(err, ErrIgnore) {
		return e, false
	}
	if err == nil {
		err = s.land.Check(e)
	}
	if err != nil {
		return s.undecodable(r, err), true
	}
	return e, true
}

// read makes an event of a message. spare is the id of one that has none, "" for one of its place.
func (s sink) read(r relay.Received, spare string) (e spi.Event, err error) {
	if err := checkHeaders(r); err != nil {
		return e, err
	}
	ce, err := r.Event()
	if err != nil {
		return e, err
	}
	made, err := s.made(r, ce, spare)
	if err != nil {
		return e, err
	}
	if s.cfg.Map != nil {
		if made, err = s.mapped(ce, made); err != nil {
			return e, err
		}
	}
	return spi.Event{
		ID: made.ID, Type: made.Type, AggregateType: made.AggregateType, AggregateID: made.AggregateID, TenantID: made.TenantID,
		StoreID: made.StoreID, SchemaVersion: made.SchemaVersion, Payload: made.Payload, Metadata: s.origin(r, made.Metadata),
	}, nil
}

// checkHeaders refuses bombs.
func checkHeaders(r relay.Received) error {
	if n := len(r.Attributes) + len(r.Headers); n > maxHeaders {
		return fmt.Errorf("the message has %d headers, the limit is %d", n, maxHeaders)
	}
	total := len(r.ContentType)
	for _, headers := range []map[string]string{r.Attributes, r.Headers} {
		for name, v := range headers {
			total += len(name) + len(v)
		}
	}
	if total > maxHeaderBytes {
		return fmt.Errorf("the headers of the message have %d bytes, the limit is %d", total, maxHeaderBytes)
	}
	return nil
}
