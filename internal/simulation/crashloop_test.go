package simulation

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/bluecone-go/bluecone/bus"
)

// One delivery ends the process of its handler, each time, until it is DEAD: only then somebody fixes the handler. Nothing
// else may end DEAD.

// kill is the delivery that does.
type kill struct {
	consumer string
	event    int
}

var errKilled = errors.New("killed")

// withKill has a delivery kill, in a world that is peaceful otherwise: the crashes are enough.
func (p *plan) withKill(r *rand.Rand, number int) {
	p.kill = kill{consumers[r.IntN(len(consumers))], r.IntN(number)}
	p.rates, p.troubles, p.failures = rates{}, nil, make(map[string]failure)
}

func (p plan) hasKill() bool { return p.kill.consumer != "" }

// attempts is after how many a delivery is DEAD, 0 for the default.
func (p plan) attempts() int {
	if p.hasKill() {
		return 3
	}
	return 0
}

// kills ends the process if the delivery is the one that does: its line is cut, and it is started again under the same
// name.
func (w *worker) kills(m bus.Message[happened]) bool {
	if m.Replay || w.plan.kill != (kill{m.Consumer, m.Payload.N}) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isMended {
		return false
	}
	w.in.dies.Do(func() {
		w.killed++
		w.in.line.set(func(ln *line) { ln.cut = true })
		w.in.stop()
		w.restarts.Go(func() {
			<-w.in.done
			wait(w.ctx, time.Second)
			w.note("%s starts again", w.in.line.name)
			w.start(w.in.place, w.in.line.name)
		})
	})
	return true
}

// judgeDead looks whether a delivery may be DEAD: the plan says so, or it kills and has used its attempts up. That one is
// fixed.
func (l *life) judgeDead(d deadDelivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.plan.hasKill():
		if !d.isPlanned() {
			l.t.Errorf("seed %d: %s is DEAD for event %s without a reason of the plan: %s", l.plan.seed, d.ConsumerName, d.EventID, d.ErrorMessage)
		}
	case d.ConsumerName == l.plan.kill.consumer && d.N == l.plan.kill.event:
		l.isMended = true
		if l.killed > l.plan.attempts()+2 {
			l.t.Errorf("seed %d: the delivery that kills has done so %d times", l.plan.seed, l.killed)
		}
	default:
		l.t.Errorf("seed %d: %s is DEAD for event %d (%s), which kills nobody: %s", l.plan.seed, d.ConsumerName, d.N, d.EventID, d.ErrorMessage)
	}
}
