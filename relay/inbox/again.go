package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/relay"
)

// againEvery is how often an inbox looks whether somebody wants something landed again.
const againEvery = 2 * time.Second

// landAgain lands what operators ask for until ctx ends.
func (in *Inbox) landAgain(ctx context.Context) {
	tick := time.NewTicker(againEvery)
	defer tick.Stop()
	for wasWell := true; ; {
		n, err := in.land.Again(ctx, in.cfg.Source, Undecodable, sink{in}.reread)
		with := metric.WithAttributes(attribute.String("source", in.cfg.Source))
		in.metrics.landed.Add(ctx, int64(n.Landed), with)
		in.metrics.duplicates.Add(ctx, int64(n.Duplicates), with)
		if err != nil && ctx.Err() == nil && wasWell {
			in.cfg.Logger.WarnContext(ctx, "inbox could not look for what is to be landed again; it looks again", "source", in.cfg.Source,
				"error", err)
		}
		wasWell = err == nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// reread reads a message that has landed as undecodable, as if it came now. The event of one without an id has another than it
// had then, which is that of the undecodable event.
func (s sink) reread(of spi.Event) (e spi.Event, err error) {
	var raw rawMessage
	if err := json.Unmarshal(of.Payload, &raw); err != nil {
		return e, fmt.Errorf("what was kept of the message cannot be read: %w", err)
	}
	if raw.Cut {
		return e, errors.New("only a part of the message was kept, because it is too large: have it sent again, or skip it")
	}
	r := relay.Received{
		Topic: raw.Topic, Partition: raw.Partition, Offset: raw.Offset, ContentType: raw.ContentType, Attributes: raw.Attributes,
		Headers: raw.Headers, Body: raw.body(),
	}
	if raw.Nanos != 0 {
		r.Time = time.Unix(0, raw.Nanos)
	}
	e, err = s.read(r, uuid.NewSHA1(namespace, []byte("again\x00"+of.ID)).String())
	if errors.Is(err, ErrIgnore) {
		return e, spi.ErrLeftOut
	}
	if err == nil {
		err = s.land.Check(e)
	}
	return e, err
}
