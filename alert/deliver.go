package alert

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

const (
	// retryFirst and retryLongest bound the pauses between attempts at a message.
	retryFirst, retryLongest = 15 * time.Second, 10 * time.Minute
)

// message is one that waits, and what its sink gets.
type message struct {
	row    store.AlertMessage
	notice Notice
}

// deliver sends what waits, to all sinks side by side.
func (a *Alerter) deliver(ctx context.Context) (sent, failed int64, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	for _, r := range a.cfg.Routes {
		wg.Go(func() {
			s, f, e := a.deliverTo(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			sent, failed, errs = sent+s, failed+f, append(errs, e)
		})
	}
	wg.Wait()
	return sent, failed, errors.Join(errs...)
}

// deliverTo sends what waits for one sink, until it refuses one: the rest can wait for the next turn.
func (a *Alerter) deliverTo(ctx context.Context, r Route) (sent, failed int64, err error) {
	waiting, err := a.waiting(ctx, r.Name)
	if err != nil {
		return 0, 0, err
	}
	for _, m := range waiting {
		mine, err := a.claim(ctx, m)
		if err != nil {
			return sent, failed, err
		}
		if !mine {
			continue
		}
		said := a.send(ctx, r, m)
		if err := a.settle(ctx, m, said); err != nil {
			return sent, failed, err
		}
		if said != nil {
			telemetry.Add(ctx, a.failed, 1, "sink", r.Name)
			a.cfg.Logger.WarnContext(ctx, "an alert could not be delivered; it is tried again", "sink", r.Name, "rule", m.notice.Rule, "subject",
				m.notice.Subject, telemetry.Attempt, m.row.Attempts+1, telemetry.Err, text.Error(said))
			return sent, failed + 1, nil
		}
		telemetry.Add(ctx, a.sent, 1, "sink", r.Name)
		sent++
	}
	return sent, failed, nil
}

// waiting lists the messages that are due for a sink, the critical ones first, each after those before it about the same alert.
func (a *Alerter) waiting(ctx context.Context, sink string) (out []message, err error) {
	due, err := a.book.sql.DueMessages(ctx, a.db, sink, perTurn)
	if err != nil {
		return nil, fmt.Errorf("alert: read what waits for %s: %w", sink, err)
	}
	for _, row := range due {
		m := message{row: row, notice: Notice{
			ID: fmt.Sprintf("%s-%d", row.Fingerprint, row.Notice), Kind: Kind(row.Kind), Level: Level(row.Level), Count: row.Count, Says: row.Says,
			Since: time.UnixMicro(row.Since).UTC(), Rule: row.Rule, Subject: row.Subject, Consumer: row.Consumer, EventType: row.EventType,
		}}
		a.complete(&m.notice)
		out = append(out, m)
	}
	return out, nil
}

// complete adds what the deployment and the rule know.
func (a *Alerter) complete(n *Notice) {
	n.Service, n.Environment, n.Remedy = a.cfg.Service, a.cfg.Environment, ruleOf(n.Rule).Remedy
	n.Runbook = a.cfg.Runbook + "#" + n.Rule
	if a.cfg.Link != nil {
		n.Link = a.cfg.Link(*n)
	}
}

// claim takes a message before it is sent: if this process dies, it falls due again.
func (a *Alerter) claim(ctx context.Context, m message) (bool, error) {
	pause := max(min(retryFirst<<min(max(m.row.Attempts, 0), 10), retryLongest), 2*a.cfg.SendTimeout)
	mine, err := a.book.sql.ClaimMessage(ctx, a.db, m.row, a.cfg.Instance, pause/2+rand.N(pause/2))
	if err != nil {
		return false, fmt.Errorf("alert: take a message: %w", err)
	}
	return mine, nil
}

// send calls the sink, which may do its worst.
func (a *Alerter) send(ctx context.Context, r Route, m message) (err error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.SendTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				done <- fmt.Errorf("the sink %s panicked: %v", r.Name, v)
			}
		}()
		done <- r.Sink.Send(ctx, m.notice)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done(): // one that does not heed its context is left behind
		return fmt.Errorf("the sink %s has not answered within %v: %w", r.Name, a.cfg.SendTimeout, ctx.Err())
	}
}

// settle notes what became of a message, even at the end of ctx.
func (a *Alerter) settle(ctx context.Context, m message, said error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var err error
	if said != nil {
		err = a.book.sql.MessageFailed(ctx, a.db, m.row.ID, text.Error(said))
	} else {
		err = a.book.sql.MessageSent(ctx, a.db, m.row.ID)
	}
	if err != nil {
		return fmt.Errorf("alert: note what became of a message: %w", err)
	}
	return nil
}
