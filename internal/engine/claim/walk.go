package claim

import (
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
)

// Walk is how far claims of one kind have got. The zero value takes what is due, and ends where nothing more is.
type Walk struct {
	at         store.Cursor // where the next claim starts; the watermark knows that of NEW events, unless all that was seen must wait
	isThorough bool         // the walk ends when it has seen the last due event and found none
	isWhole    bool         // the next claim of NEW events starts at the start
	hasFound   bool         // it has found any since then
}

// ThoroughWalk starts at the start and ends when it has seen the last due event, and found none.
func ThoroughWalk() Walk { return Walk{isThorough: true, isWhole: true} }

// IsThorough tells whether the walk has to see the last due event.
func (w *Walk) IsThorough() bool { return w.isThorough }

// Relax makes a thorough walk one that is not, which goes on where it is.
func (w *Walk) Relax() { w.isThorough = false }

// Start is where the next claim of a kind starts.
func (w *Walk) Start(now time.Time, kind Kind, m *Watermark) store.Cursor {
	if kind == New && w.at == (store.Cursor{}) {
		return m.Start(now, w.isWhole)
	}
	return w.at
}

// GoOn decides, after a claim that ended now and took so long, whether another one follows at once. If not, again is
// after what time to claim NEW events once more, 0 for no earlier than anything else is looked for.
func (w *Walk) GoOn(now time.Time, r Result, took time.Duration, m *Watermark) (more bool, again time.Duration) {
	more, again = w.goOn(now, r, took, m)
	if !more && w.isThorough {
		*w = Walk{}
	}
	return more, again
}

func (w *Walk) goOn(now time.Time, r Result, took time.Duration, m *Watermark) (more bool, again time.Duration) {
	w.hasFound = w.hasFound || len(r.Rows) > 0
	switch {
	case r.Kind == New && r.IsMostlyBlocked() && !w.isThorough:
		return false, m.Rest(now, took)
	case len(r.Rows) > 0 && r.IsFull:
		w.isWhole = false
		return true, 0
	case r.IsFull && r.Last == (store.Cursor{}): // delayed ones that have to wait: they are NEW now, and not in the way of others
		return true, 0
	case r.IsFull && w.at.IsBefore(r.Last) && (w.isThorough || r.Kind != New): // all must wait, but there may be others behind them
		w.at = r.Last
		return w.isThorough, 0 // or after the next look
	case r.From == store.Cursor{}, w.isThorough && !w.hasFound:
		if r.Kind == New && r.IsBlocked() {
			return false, m.Rest(now, took)
		}
		return false, 0
	case w.isThorough:
		w.isWhole, w.at, w.hasFound = true, store.Cursor{}, false
		return true, 0
	case r.Kind != New:
		w.at = store.Cursor{}
		return false, 0
	}
	if wait := m.UntilWhole(now); wait > 0 {
		return false, wait
	}
	w.isWhole = true
	return true, 0
}
