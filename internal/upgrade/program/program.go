// Package program is an instance of a deployment that both the release before and this one can build: the test of the
// upgrade compiles it in the tree of commit 1852d9b (tag oldrelease), and runs the two side by side. It does what it is
// told, a line at a time, and answers each line with "ok" or an error.
package program

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// What the environment says.
const (
	EnvDSN    = "BLUECONE_UPGRADE_DSN"
	EnvName   = "BLUECONE_UPGRADE_NAME"   // of the instance
	EnvFormer = "BLUECONE_UPGRADE_FORMER" // the consumer Wallet has its former name
	EnvGone   = "BLUECONE_UPGRADE_GONE"   // there is a consumer Gone, and no other
	EnvFixed  = "BLUECONE_UPGRADE_FIXED"  // no handler fails
)

type item struct {
	ID  string
	Seq int
	How string // what goes wrong, such as "Points:dead"
}

// EventType is the durable name of the event.
func (item) EventType() string { return "item.moved" }

// Aggregate is the item.
func (e item) Aggregate() (kind, id string) { return "ITEM", e.ID }

type keyedItem struct{ item }

// EventType is the durable name of the event.
func (keyedItem) EventType() string { return "item.keyed" }

// IdempotencyKey is what would go wrong with an event that has no key.
func (e keyedItem) IdempotencyKey() string { return e.How }

type orphan struct{ item }

// EventType is the durable name of the event, which the release before does not take.
func (orphan) EventType() string { return "item.orphan" }

type program struct {
	db    *bun.DB
	ob    *outbox.Outbox
	bus   *bus.Bus
	name  string
	fixed bool
	stop  func() error

	mu   sync.Mutex
	seen map[string]bool // events that a handler has been given
}

// Main obeys the lines of in until it ends.
func Main(in io.Reader, out io.Writer) error {
	ctx := context.Background()
	p, err := start()
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		answer := "ok"
		if err := p.obey(ctx, strings.Fields(lines.Text())); err != nil {
			answer = "error: " + strings.Join(strings.Fields(err.Error()), " ")
		}
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return err
		}
	}
	return p.db.Close()
}

func start() (*program, error) {
	logger := slog.New(slog.DiscardHandler)
	db, err := open(os.Getenv(EnvDSN))
	if err != nil {
		return nil, err
	}
	p := &program{db: db, name: os.Getenv(EnvName), fixed: os.Getenv(EnvFixed) != "", seen: make(map[string]bool)}
	if p.ob, err = outbox.New(db, outbox.Config{Instance: p.name, Logger: logger}); err != nil {
		return nil, err
	}
	p.bus = bus.New(db, bus.Config{Logger: logger})
	if os.Getenv(EnvGone) != "" {
		p.follow(p.bus.Consumer("Gone", bus.ConsumerConfig{}), "Gone")
		return p, nil
	}
	name, cfg := wallet(os.Getenv(EnvFormer) != "")
	p.follow(p.bus.Consumer(name, cfg), "Wallet")
	p.follow(p.bus.Consumer("Points", bus.ConsumerConfig{}), "Points")
	p.follow(p.bus.Consumer("Mail", bus.ConsumerConfig{}), "Mail")
	p.follow(p.bus.Consumer("Audit", bus.ConsumerConfig{Unordered: true, Replayable: true}), "Audit")
	p.newcomers(p.bus)
	return p, nil
}

func (p *program) follow(c *bus.Consumer, consumer string) {
	bus.On(c, handler[item](p, consumer))
	bus.On(c, handler[keyedItem](p, consumer))
}

// payload is what the events have in common.
type payload interface {
	bus.Event
	what() item
}

func (e item) what() item { return e }

// handler writes an effect, unless the event says that something else goes wrong here.
func handler[E payload](p *program, consumer string) func(ctx context.Context, tx bun.Tx, m bus.Message[E]) error {
	return func(ctx context.Context, tx bun.Tx, m bus.Message[E]) error {
		e, label := m.Payload.what(), consumer
		if m.Replay {
			label += "@replay"
		}
		if at, what, ok := strings.Cut(e.How, ":"); ok && at == consumer && !p.fixed {
			if err := p.goWrong(what, m.ID); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, event_id, aggregate, seq, node) VALUES (?, ?, ?, ?, ?)", label, m.ID,
			e.ID, e.Seq, p.name)
		return err
	}
}

func (p *program) goWrong(what, id string) error {
	switch what {
	case "dead":
		return bus.Permanent(errors.New("this cannot be"))
	case "skip":
		return bus.Skip("not for me")
	case "fail":
		return bus.RetryAfter(errors.New("not yet"), time.Hour) // no instance that is killed has it leased
	case "hang":
		p.mu.Lock()
		again := p.seen[id]
		p.seen[id] = true
		p.mu.Unlock()
		if !again {
			return bus.RetryAfter(errors.New("once more"), 50*time.Millisecond)
		}
		select {} // until somebody kills the process
	case "hangs-at-once":
		select {}
	}
	return nil
}

func (p *program) obey(ctx context.Context, words []string) error {
	if len(words) == 0 {
		return nil
	}
	word := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	number, _ := strconv.Atoi(word(2)) // those that have one
	e, op := item{word(1), number, word(3)}, outbox.Operation{Actor: "test", Reason: "the upgrade"}
	switch words[0] {
	case "migrate":
		return migrations.Up(ctx, p.db)
	case "run":
		return p.run(ctx)
	case "stop":
		return p.stop()
	case "save":
		return p.save(ctx, e)
	case "keyed":
		return p.save(ctx, keyedItem{e})
	case "orphan":
		return p.save(ctx, orphan{e})
	case "later":
		d, err := time.ParseDuration(word(4))
		return errors.Join(err, p.save(ctx, outbox.With(e, outbox.DeliverAt(time.Now().Add(d)))))
	case "pause":
		return p.ob.Pause(ctx, op, word(1), 24*time.Hour)
	case "resume":
		return p.ob.Resume(ctx, op, word(1))
	case "retire":
		return p.ob.Retire(ctx, op, word(1))
	case "retry":
		return p.ob.Retry(ctx, op, word(1), words[2:]...)
	case "skip":
		return p.ob.Skip(ctx, op, word(1), word(2))
	case "replay":
		return p.ob.Replay(ctx, op, word(1), word(2))
	case "retention":
		r, err := outbox.NewRetention(p.ob, outbox.RetentionConfig{Keep: time.Hour, Archive: true})
		if err == nil {
			_, err = r.RunOnce(ctx)
		}
		return err
	}
	return fmt.Errorf("nobody knows what %q is", words[0])
}

func (p *program) save(ctx context.Context, e bus.Event) error {
	return p.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error { return p.ob.Save(ctx, tx, e) })
}

// run publishes until it is told to stop. What ends the publisher within a moment is the answer.
func (p *program) run(ctx context.Context) error {
	lease := 3 * time.Second
	if !p.fixed {
		lease = 15 * time.Second // what it leaves is leased still when the tables change
	}
	publisher, err := outbox.NewPublisher(p.ob, p.bus, outbox.PublisherConfig{Lease: lease, Poll: 100 * time.Millisecond})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- bus.Run(ctx, publisher) }()
	p.stop = func() error {
		cancel()
		return <-ended
	}
	select {
	case err := <-ended:
		cancel()
		return errors.Join(errors.New("the publisher has ended"), err)
	case <-time.After(time.Second):
		return nil
	}
}
