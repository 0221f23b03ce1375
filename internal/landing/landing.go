// Package landing saves events that an inbox brings: as they are, once by their ids, and those that nobody can handle as DEAD.
package landing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"
	"unicode/utf8"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/health"
	"github.com/bluecone-go/bluecone/internal/engine/remote"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/kind"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Config is what a landing needs of its outbox.
type Config struct {
	DB         *bun.DB
	Dialect    dialect.Dialect
	Statements *prepared.Statements
	Saving     store.Saving
	Metrics    *telemetry.Metrics
	Instance   string
	Logger     *slog.Logger
	// MaxPayload, MaxDepth and MaxMetadata are the limits of Save, MaxAttempts what each event gets.
	MaxPayload, MaxDepth, MaxMetadata, MaxAttempts int
	// Deliveries lease what is to be landed again.
	Deliveries *remote.Deliveries
	// Notify is the transaction as it tells other instances; HandOver gives what is committed to a publisher of this process.
	Notify   func(store.Tx) store.Tx
	HandOver func(ids []string)
}

// Landing is the [spi.Landing] of an outbox.
type Landing struct {
	cfg     Config
	inboxes store.Inboxes
	queues  store.Queues
}

// New returns the landing of an outbox.
func New(cfg Config) *Landing {
	cfg.Saving = cfg.Saving.Together() // hardly anybody else saves what a broker brings
	return &Landing{cfg, store.NewInboxes(cfg.Dialect), store.NewQueues(cfg.Dialect, cfg.Statements)}
}

// Check says what is wrong with an event.
func (l *Landing) Check(e spi.Event) error {
	err := errors.Join(
		text.Key("event id", e.ID, 64),
		text.EventType("event type", e.Type),
		text.AggregateType("aggregate type", e.AggregateType),
		text.Key("aggregate id", e.AggregateID, 128),
	)
	if err != nil {
		return err
	}
	depth, _ := text.Inspect(e.Payload)
	switch {
	case e.TenantID < 0 || e.StoreID < 0:
		return fmt.Errorf("tenant %d, store %d: they must not be negative", e.TenantID, e.StoreID)
	case e.SchemaVersion < 1 || e.SchemaVersion > maxSchemaVersion:
		return fmt.Errorf("schema version %d: it must be between 1 and %d", e.SchemaVersion, maxSchemaVersion)
	case !json.Valid(e.Payload):
		return errors.New("the payload is not JSON")
	case len(e.Payload) > l.cfg.MaxPayload:
		return fmt.Errorf("the payload has %d bytes, the limit is %d (outbox.Config.MaxPayload)", len(e.Payload), l.cfg.MaxPayload)
	case depth > l.cfg.MaxDepth:
		return fmt.Errorf("the payload is nested %d deep, the limit is %d", depth, l.cfg.MaxDepth)
	case !utf8.Valid(e.Payload):
		return errors.New("the payload is not valid UTF-8: it would not be stored as it is")
	}
	_, err = l.row(e)
	return err
}

// row is an event as it is inserted.
func (l *Landing) row(e spi.Event) (store.NewEvent, error) {
	for k, v := range e.Metadata {
		if err := text.Key("metadata key", k, 64); err != nil {
			return store.NewEvent{}, err
		}
		if text.Clean(v, len(v)+1) != v {
			return store.NewEvent{}, fmt.Errorf("metadata %s is not valid UTF-8 or contains NUL", k)
		}
	}
	md := make(map[string]string, len(e.Metadata)+1)
	maps.Copy(md, e.Metadata)
	md[settle.MetaInstance] = l.cfg.Instance
	metadata, err := json.Marshal(md)
	if err == nil && len(metadata) > l.cfg.MaxMetadata {
		err = fmt.Errorf("metadata has %d bytes, the limit is %d", len(metadata), l.cfg.MaxMetadata)
	}
	r := store.NewEvent{
		AggregateType: e.AggregateType, AggregateID: e.AggregateID, Type: e.Type, ID: e.ID, Payload: string(e.Payload),
		Metadata: string(metadata), TenantID: e.TenantID, StoreID: e.StoreID, SchemaVersion: e.SchemaVersion,
		MaxAttempts: l.cfg.MaxAttempts, IsKeyed: true, // an id is taken once
	}
	if id := md[telemetry.TraceID]; len(id) <= maxTraceID {
		r.TraceID = id
	}
	return r, err
}

// rows are events as they are inserted, and why some of them are DEAD, by their ids.
func (l *Landing) rows(events []spi.Event) (rows []store.NewEvent, dead map[string]string, err error) {
	rows, dead = make([]store.NewEvent, len(events)), make(map[string]string)
	for i, e := range events {
		if rows[i], err = l.row(e); err != nil {
			return nil, nil, fmt.Errorf("outbox: land %s: %w", text.Quote(e.ID), err)
		}
		if e.Dead != "" {
			dead[e.ID] = e.Dead
		}
	}
	return rows, dead, nil
}

// Land saves what is new of a batch, and hands it over to a publisher of this process.
func (l *Landing) Land(ctx context.Context, b spi.Batch) (n spi.Counts, err error) {
	rows, dead, err := l.rows(b.Events)
	if err != nil {
		return n, err
	}
	owner := ""
	if b.IsOwned {
		owner = l.cfg.Instance
	}
	var ids []string
	var stored []store.NewEvent
	err = store.InTx(ctx, l.cfg.DB, l.cfg.Dialect, l.cfg.Statements, func(ctx context.Context, tx bun.Tx) error {
		n, ids, stored = spi.Counts{}, nil, nil
		if err := l.inboxes.Enter(ctx, tx, b.Inbox, b.Partition, owner); err != nil {
			return err
		}
		if len(rows) > 0 {
			var err error
			if stored, err = l.cfg.Saving.Save(ctx, l.cfg.Notify(store.BunTx(tx, l.cfg.Statements)), rows); err != nil {
				return err
			}
		}
		for _, r := range stored {
			why, isDead := dead[r.ID]
			if !isDead {
				ids = append(ids, r.ID)
				continue
			}
			n.Undecodable++
			if err := l.inboxes.Bury(ctx, tx, b.DeadConsumer, r.ID, text.Clean(why, text.MaxError)); err != nil {
				return err
			}
		}
		n.Landed, n.Duplicates = len(stored), len(rows)-len(stored)
		return l.inboxes.Add(ctx, tx, store.Arrived{
			Inbox: b.Inbox, Partition: b.Partition, Offset: b.Offset, Landed: n.Landed, Duplicates: n.Duplicates, Undecodable: n.Undecodable,
		})
	})
	if dialect.Classify(err) == dialect.Data {
		return n, kind.Of(fmt.Errorf("outbox: land: %w", err), spi.ErrData)
	} else if err != nil {
		return n, fmt.Errorf("outbox: land: %w", err)
	}
	if len(ids) > 0 {
		l.cfg.HandOver(ids)
	}
	telemetry.AddEach(ctx, l.cfg.Metrics.Created, stored, store.TypeOf)
	return n, nil
}

// Open counts events that are neither done nor DEAD.
func (l *Landing) Open(ctx context.Context, most int) (int, error) {
	return l.inboxes.Open(ctx, l.cfg.DB, most)
}

// Own takes a partition for this instance.
func (l *Landing) Own(ctx context.Context, inbox, partition string, d time.Duration) (bool, error) {
	return l.inboxes.Own(ctx, l.cfg.DB, inbox, partition, l.cfg.Instance, d)
}

// Release gives back all partitions of an inbox.
func (l *Landing) Release(ctx context.Context, inbox string) error {
	return l.inboxes.Release(ctx, l.cfg.DB, inbox, l.cfg.Instance)
}

// Tell says in bc_broker what is known of the broker.
func (l *Landing) Tell(ctx context.Context, read func(ctx context.Context) store.Broker) {
	health.Brokers{DB: l.cfg.DB, Rows: store.NewBrokers(l.cfg.Dialect), Logger: l.cfg.Logger, Instance: l.cfg.Instance}.Run(ctx.Done(), read)
}

// Counts are what all instances have landed.
func (l *Landing) Counts(ctx context.Context, inbox string) (spi.Counts, error) {
	a, err := l.inboxes.Counts(ctx, l.cfg.DB, inbox)
	return spi.Counts{Landed: a.Landed, Duplicates: a.Duplicates, Undecodable: a.Undecodable}, err
}
