package claim

import "time"

// Alarm tells the publisher's loop, which owns it, that it is time to claim NEW events again.
type Alarm struct {
	isSet bool // until the loop has heard it
	rings chan struct{}
}

// NewAlarm returns an alarm that is not set.
func NewAlarm() *Alarm { return &Alarm{rings: make(chan struct{}, 1)} }

// Set lets the alarm ring after a while, unless it is set already.
func (a *Alarm) Set(after time.Duration) {
	if a.isSet {
		return
	}
	a.isSet = true
	time.AfterFunc(after, func() { Signal(a.rings) })
}

// Rings is signaled when it is time. The loop then calls [Alarm.Heard].
func (a *Alarm) Rings() <-chan struct{} { return a.rings }

// Heard notes that the alarm was heard, so that it can be set again.
func (a *Alarm) Heard() { a.isSet = false }
