package simulation

import "github.com/bluecone-go/bluecone/bus"

// The first instance is of an older release, which does not know the second schema version of the event that all take.

// inRelease is an event as the release of the producer writes it.
func (p plan) inRelease(h happened, place int) bus.Event {
	switch {
	case p.releases && h.N%2 == 0:
		return more{h}
	case p.versions && place > 0 && h.N%3 > 0:
		return reshaped{h.N, h.Seq, h.Of, h.Seat}
	}
	return h
}
