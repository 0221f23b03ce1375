package delivery

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/bluecone-go/bluecone/internal/contain"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

const recordTimeout = 10 * time.Second

// outcomes ends deliveries: it stores what became of them, and tells their events, the logs and the metrics.
type outcomes struct {
	l  *Lanes
	c  *handler.Consumer
	ln *lane
}

// setAside ends deliveries that do not run now, without counting an attempt.
func (o *outcomes) setAside(ctx context.Context, d *delivery, answer store.Answer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	switch {
	case answer == recorded:
		telemetry.Add(ctx, o.l.regs.Metrics.Idempotent, 1, telemetry.Consumer, o.c.Name, telemetry.EventType, d.Event.Type)
		o.line(ctx, slog.LevelDebug, d, "event has a delivery of this consumer already")
		o.wakeNext(ctx, d)
		o.report(ctx, settle.Recorded, d)
	case answer == store.Lost && !d.isLost():
		// The process is going down, or the outbox lease is gone.
		o.abandon(ctx, d)
	case answer == store.Lost:
		telemetry.Add(ctx, o.l.regs.Metrics.LeaseLost, 1, telemetry.Consumer, o.c.Name)
		o.line(ctx, slog.LevelWarn, d, "the lease of the delivery was lost; its new holder goes on")
		o.abandon(ctx, d)
	case answer == store.Gone && d.lease != nil:
		o.fail(ctx, d, handler.Permanent(errors.New("the event's row does not exist any more")))
	case d.isDirect() && answer != store.Blocked:
		o.abandon(ctx, d)
	default:
		o.putOff(ctx, []*delivery{d})
	}
}

// putOff ends deliveries that cannot run now. The loop is told when they are due again: what they wait for may wake nobody, and the next
// look at what is due may be far.
func (o *outcomes) putOff(ctx context.Context, ds []*delivery) {
	if len(ds) == 0 {
		return
	}
	wait := o.ln.untilNextLook()
	var direct, leased []*delivery
	for _, d := range ds {
		if d.isDirect() {
			direct = append(direct, d)
		} else {
			leased = append(leased, d)
		}
	}
	if len(direct) > 0 {
		o.deferDirect(ctx, wait, direct...)
	}
	if len(leased) > 0 {
		o.putBackAll(ctx, leased, wait)
	}
	for _, d := range ds {
		o.l.putOff.add(o.c.Key, d.Event.ID)
	}
	o.l.Signals.dueAgainAfter(wait)
}

func (o *outcomes) abandon(ctx context.Context, d *delivery) {
	if d.lease != nil {
		o.putBack(ctx, d, 0)
		return
	}
	o.report(ctx, settle.Abandoned, d)
}

// putBack gives a lease back. It waits for a database that is away: a delivery that was started and is neither ended nor given
// back looks as if it had killed its process.
func (o *outcomes) putBack(ctx context.Context, d *delivery, delay time.Duration) {
	err := o.insist(ctx, func(ctx context.Context) error {
		return o.writeBack(ctx, []*delivery{d}, delay)
	})
	if err != nil && !errors.Is(err, store.ErrLeaseLost) {
		o.warn(ctx, d, "delivery could not be put back; its lease will expire", err)
	}
	o.reportWaiting(d)
}

// giveBack ends deliveries that never ran. The end of the lanes may wait for it, so it is tried once, and not for long.
func (o *outcomes) giveBack(ctx context.Context, ds ...*delivery) {
	var leased []*delivery
	for _, d := range ds {
		if d.isDirect() {
			d.done(settle.Abandoned)
		} else {
			leased = append(leased, d)
		}
	}
	if len(leased) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	if err := o.writeBack(ctx, leased, 0); err != nil && !errors.Is(err, store.ErrLeaseLost) {
		o.warn(ctx, leased[0], "deliveries could not be given back; their leases will expire", err)
	}
	for _, d := range leased {
		o.reportWaiting(d)
	}
}

// reportWaiting tells the publisher of a direct delivery that has got a row of its own that it waits in the consume log.
func (o *outcomes) reportWaiting(d *delivery) {
	if d.done != nil {
		d.done(settle.Recorded)
	}
}

// putBackAll is putBack for many, by one statement if all leases are still ours.
func (o *outcomes) putBackAll(ctx context.Context, ds []*delivery, delay time.Duration) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	err := o.writeBack(limited, ds, delay)
	for _, d := range ds {
		if err != nil {
			o.putBack(ctx, d, delay)
		} else {
			o.reportWaiting(d)
		}
	}
}

// writeBack ends the leases of deliveries, which wait again.
func (o *outcomes) writeBack(ctx context.Context, ds []*delivery, delay time.Duration) error {
	return o.l.cfg.Budget.Write(ctx, func() error { return o.l.regs.Log.PutBack(ctx, o.l.cfg.Instance, delay, leasesOf(ds)...) })
}

// insist repeats a write while the database is away, until the drain time is over.
func (o *outcomes) insist(ctx context.Context, write func(context.Context) error) error {
	for try := 1; ; try++ {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
		err := write(limited)
		cancel()
		isAway := err != nil && o.l.cfg.Outage.Notice(ctx, err)
		if !isAway || o.l.work.Err() != nil {
			return err
		}
		pause(o.l.work, min(try, longPause))
	}
}

// longPause makes for pauses of up to a second.
const longPause = 50

// deferDirect leaves direct deliveries to the retry queue of their consumer.
func (o *outcomes) deferDirect(ctx context.Context, delay time.Duration, ds ...*delivery) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	err := o.l.cfg.Budget.Write(ctx, func() error { return o.l.regs.Log.Defer(ctx, o.l.regs.DB, rowsOf(ds, o.c), delay) })
	if err != nil {
		o.warn(ctx, ds[0], "deliveries could not be queued; their events will be claimed again", err)
		o.report(ctx, settle.Abandoned, ds...)
		return
	}
	for _, d := range ds {
		o.line(ctx, slog.LevelDebug, d, "delivery waits")
	}
	o.report(ctx, settle.Recorded, ds...)
}

// postpone puts a delivery off because the database is in trouble, uncounted.
func (o *outcomes) postpone(ctx context.Context, d *delivery, err error) {
	o.warn(ctx, d, "the database is in trouble; the delivery is tried again later and does not count as an attempt", err)
	delay := time.Second + rand.N(4*time.Second)
	if d.isDirect() {
		o.deferDirect(ctx, delay, d)
		return
	}
	o.putBack(ctx, d, delay)
}

// fail stores that an attempt did not succeed. Storing it survives the end of ctx.
func (o *outcomes) fail(ctx context.Context, d *delivery, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	o.conclude(ctx, d, verdict(ctx, o.c, d, cause), cause)
}

// conclude stores a verdict, and tells the event, the log and the metrics.
func (o *outcomes) conclude(ctx context.Context, d *delivery, v store.Verdict, cause error) {
	o.l.putOff.drop(o.c.Key, d.Event.ID)
	mine, err := o.store(ctx, d, v)
	switch {
	case err != nil:
		o.warn(ctx, d, "the failure of an attempt could not be stored; the delivery will be tried again", errors.Join(cause, err))
		if d.done != nil {
			d.done(settle.Abandoned)
		}
		return
	case mine:
		o.publishFailure(ctx, d, v, cause)
	case errors.Is(cause, handler.ErrEnds):
		o.line(ctx, slog.LevelError, d, "the handler has committed its transaction before its end: what was committed is its effect, and it is "+
			"not run again", telemetry.Err, v.Error)
	}
	if v.Status != store.Failed { // a FAILED one still blocks later events of its aggregate
		o.wakeNext(ctx, d)
	}
	o.report(ctx, settle.Recorded, d)
}

// store writes the verdict and the attempt. It reports false if the delivery belongs to somebody else.
func (o *outcomes) store(ctx context.Context, d *delivery, v store.Verdict) (mine bool, err error) {
	attempt := store.Attempt{Instance: o.l.cfg.Instance}
	if !d.Started.IsZero() { // no handler was called otherwise
		attempt.Duration = time.Since(d.Started)
	}
	for try := 1; ; try++ {
		err = o.l.cfg.Budget.Write(ctx, func() (err error) {
			if d.isDirect() {
				mine, err = o.l.regs.Log.Fail(ctx, d.row(o.c), v, attempt)
				return err
			}
			err = o.l.regs.Log.FailLeased(ctx, o.l.cfg.Instance, *d.lease, v, attempt)
			mine = err == nil
			return err
		})
		if errors.Is(err, store.ErrLeaseLost) {
			telemetry.Add(ctx, o.l.regs.Metrics.LeaseLost, 1, telemetry.Consumer, o.c.Name)
			return false, nil
		}
		if err == nil || try == infraTries || ctx.Err() != nil {
			return mine, err
		}
		pause(ctx, try)
	}
}

// publishFailure tells metrics, log and the alert hook of a stored verdict.
func (o *outcomes) publishFailure(ctx context.Context, d *delivery, v store.Verdict, cause error) {
	m, kv := o.l.regs.Metrics, []string{telemetry.Consumer, o.c.Name, telemetry.EventType, d.Event.Type}
	if v.Status == store.Skipped {
		telemetry.Add(ctx, m.Skipped, 1, kv...)
		o.line(ctx, slog.LevelInfo, d, "event skipped", telemetry.Reason, v.Error)
		return
	}
	telemetry.Add(ctx, m.Refused, 1, kv...)
	var p *contain.PanicError
	if errors.As(cause, &p) && p.Stack != "" {
		o.line(ctx, slog.LevelError, d, "handler panicked", telemetry.Err, v.Error, telemetry.Stack, text.Clean(p.Stack, text.MaxError))
	}
	if v.Status != store.Dead {
		o.line(ctx, slog.LevelWarn, d, "attempt failed; it will be tried again", telemetry.Err, v.Error, telemetry.Delay, v.Delay)
		return
	}
	o.line(ctx, slog.LevelError, d, "delivery is DEAD and waits for an operator", telemetry.Err, v.Error)
	if o.l.regs.OnDeadLetter != nil {
		o.raiseAlert(ctx, d, handler.DeadLetter{Event: d.Event, Consumer: o.c.Name, Key: o.c.Key, Attempts: d.Attempt, Error: v.Error})
	}
}

// raiseAlert calls the user's hook. A panic in it ends that call only: the delivery is stored, and others have to go on.
func (o *outcomes) raiseAlert(ctx context.Context, d *delivery, letter handler.DeadLetter) {
	err := contain.Call("Config.OnDeadLetter", func() error {
		o.l.regs.OnDeadLetter(ctx, letter)
		return nil
	})
	if p, ok := errors.AsType[*contain.PanicError](err); ok {
		o.line(ctx, slog.LevelError, d, "Config.OnDeadLetter panicked", telemetry.Stack, text.Clean(p.Stack, text.MaxError))
	}
}

func (o *outcomes) warn(ctx context.Context, d *delivery, msg string, err error) {
	o.line(ctx, o.level(ctx, err), d, msg, telemetry.Err, text.Error(err))
}

// level is the level at which a consequence of err is logged: an outage is logged once, by itself.
func (o *outcomes) level(ctx context.Context, err error) slog.Level {
	return o.l.cfg.Outage.Level(ctx, err)
}

func (o *outcomes) line(ctx context.Context, level slog.Level, d *delivery, msg string, more ...any) {
	if !o.l.regs.Logger.Enabled(ctx, level) {
		return
	}
	o.l.regs.Logger.Log(ctx, level, msg, append([]any{ //nolint:sloglint // keys are constants
		telemetry.EventID, d.Event.ID, telemetry.EventType, d.Event.Type, telemetry.Consumer, o.c.Name,
		telemetry.AggregateType, d.Event.AggregateType, telemetry.AggregateID, d.Event.AggregateID, telemetry.Attempt, d.Attempt,
		telemetry.TraceID, d.Event.Metadata[telemetry.TraceID], telemetry.RequestID, d.Event.Metadata[telemetry.RequestID],
	}, more...)...)
}
