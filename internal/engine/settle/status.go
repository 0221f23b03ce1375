package settle

import "github.com/bluecone-go/bluecone/internal/store"

// Status is the state of an event, as its row has it. Users see it as outbox.Status.
type Status string

// The states that settling gives an event, or finds it in.
const (
	New       Status = "NEW"         // to be claimed at once
	Scheduled Status = "SCHEDULED"   // to be claimed after a while
	Leased    Status = "DISPATCHING" // an instance has it in flight
	Sent      Status = "SENT"        // every delivery is done
	Failed    Status = "FAILED"      // a delivery waits
	Dead      Status = "DEAD"        // a delivery waits for an operator, and none for the engine
)

// Deliveries is what is known of the deliveries of an event.
type Deliveries struct {
	Waiting, Dead int
	// Missing says that a consumer that must get the event has no delivery yet, so that the event has to be claimed again.
	Missing bool
}

// Status is the status of the event.
func (d Deliveries) Status() Status {
	switch {
	case d.Missing:
		return New
	case d.Waiting > 0:
		return Failed
	case d.Dead > 0:
		return Dead
	}
	return Sent
}

// count sums up the states of deliveries, by the keys of their consumers, all of which need one.
func count(states map[string]store.Status, needed []string) Deliveries {
	var d Deliveries
	for _, status := range states {
		switch {
		case status.Waiting():
			d.Waiting++
		case status == store.Dead:
			d.Dead++
		}
	}
	for _, key := range needed {
		if _, ok := states[key]; !ok {
			d.Missing = true
		}
	}
	return d
}

// rolledUp is the status of an event that was settled before, by the sum of its deliveries. Without any it stays as it is:
// but one that is FAILED, set by hand, say, is claimed again.
func rolledUp(before Status, sum store.Summary) Status {
	if sum.Rows == 0 && before != Failed {
		return before
	}
	return Deliveries{Waiting: sum.Waiting, Dead: sum.Dead, Missing: sum.Rows == 0}.Status()
}
