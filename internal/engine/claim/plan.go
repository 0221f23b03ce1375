package claim

import (
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
)

// Plan decides, for the loop of a publisher, which kind of due work comes next, and how many events a claim of it takes. Only
// that goroutine uses it.
type Plan struct {
	Agenda

	configured    int      // events that a claim takes
	size          int      // that the next claim of NEW events takes
	consumers     []string // keys of those for which deliveries are due, if the agenda says so
	hasPassedOver bool     // a claim has left events alone for the sake of others
}

// NewPlan returns a plan for claims that take so many events, unless there is a backlog.
func NewPlan(configured int) *Plan { return &Plan{configured: configured, size: configured} }

// Room is how many events there is room for now, and at most: in flight, and in the lanes that take them.
type Room struct{ InFlight, MostInFlight, Lanes, MostLanes int }

// Pages are how many events of each kind a claim takes now: 0 if there is not enough room for a claim to be worth it.
type Pages [Expired + 1]int

// PageSize is how many events of a kind a claim takes now: 0 if there is not enough room for a claim to be worth it.
func (p *Plan) PageSize(kind Kind, r Room) int {
	most := p.configured
	if kind == New {
		most = p.size
	}
	size := min(r.InFlight, r.Lanes, most)
	if size < WorthwhileRoom(min(r.MostInFlight, r.MostLanes, most)) {
		return 0
	}
	return size
}

// NextOf is the kind that has its turn: of those of which a claim is worth it, and the deliveries, for which the lanes see to
// their room. It reports false if there is none.
func (p *Plan) NextOf(pages Pages) (Kind, bool) {
	ready := Of(Deliveries)
	for kind, size := range pages {
		if size > 0 {
			ready |= Of(Kind(kind))
		}
	}
	return p.Next(ready)
}

// Claimed notes what a claim has found.
func (p *Plan) Claimed(r Result) {
	if r.Kind == New {
		p.size = PageSize(p.configured, r.IsFull)
	}
	p.hasPassedOver = p.hasPassedOver || r.IsBlocked()
}

// HasPassedOver reports whether a claim has left events alone, since [Plan.ForgetPassedOver], for the sake of others.
func (p *Plan) HasPassedOver() bool { return p.hasPassedOver }

// ForgetPassedOver begins anew with what [Plan.HasPassedOver] reports.
func (p *Plan) ForgetPassedOver() { p.hasPassedOver = false }

// Question is what to ask the database: which kinds are due that the plan does not know of. left are the consumers for which to
// ask whether other instances have left deliveries.
func (p *Plan) Question(left []string) store.DueQuestion {
	known := p.Due()
	return store.DueQuestion{
		New: !known.Has(New), Scheduled: !known.Has(Scheduled), Expired: !known.Has(Expired), Deliveries: !known.Has(Deliveries), Left: left,
	}
}

// Answered notes an answer to [Plan.Question]. isMine tells whether the instance has one of the consumers for which deliveries are
// due: otherwise these wait for other instances.
func (p *Plan) Answered(began, ended time.Time, a store.DueAnswer, isMine bool) {
	var found Kinds
	for kind, isDue := range map[Kind]bool{New: a.New, Scheduled: a.Scheduled, Expired: a.Expired} {
		if isDue {
			found |= Of(kind)
		}
	}
	if isMine {
		p.consumers, found = a.Consumers, found|Of(Deliveries)
	}
	p.Looked(began, ended, found)
}

// Consumers are those for which deliveries are due, by their keys.
func (p *Plan) Consumers() []string { return p.consumers }
