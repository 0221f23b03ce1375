package flow

import "slices"

// Bytes limits the bytes of payloads in memory. One payload may be larger than all of it: otherwise it would never
// be loaded.
type Bytes struct{ limit, used int }

// NewBytes allows so many, of which none is used.
func NewBytes(limit int) Bytes { return Bytes{limit: limit} }

// Limit is how many more bytes may be taken.
func (b *Bytes) Limit() int { return max(b.limit-b.used, 0) }

// Fits tells whether a payload may be loaded now.
func (b *Bytes) Fits(bytes int) bool { return b.used == 0 || b.used+bytes <= b.limit }

// Take uses bytes, even more than there are.
func (b *Bytes) Take(bytes int) { b.used += bytes }

// Give gives bytes back.
func (b *Bytes) Give(bytes int) { b.used -= bytes }

// SharedBytes are bytes that several users share in turns. A user whose next payload does not fit waits in a line; beyond
// half of the bytes, those in line go before others.
type SharedBytes[User comparable] struct {
	Bytes

	line []User
}

// NewSharedBytes allows so many, of which none is used.
func NewSharedBytes[User comparable](limit int) SharedBytes[User] {
	return SharedBytes[User]{Bytes: NewBytes(limit)}
}

// TakeFor takes bytes for a user's payload, or puts the user in line.
func (b *SharedBytes[User]) TakeFor(user User, bytes int) bool {
	fits := b.Fits(bytes)
	if len(b.line) > 0 && b.line[0] != user && b.used+bytes > b.limit/2 {
		fits = false
	}
	if fits {
		b.Take(bytes)
	} else if !slices.Contains(b.line, user) {
		b.line = append(b.line, user)
	}
	return fits
}

// MustWait tells whether the user is in line behind another.
func (b *SharedBytes[User]) MustWait(user User) bool { return slices.Index(b.line, user) > 0 }

// First is the user who is first in line.
func (b *SharedBytes[User]) First() (user User, ok bool) {
	if len(b.line) == 0 {
		return user, false
	}
	return b.line[0], true
}

// EndTurn ends a claim of the user, who leaves the line, or goes to its end after some of the payloads fitted and not all. A user
// who got nothing stays where they are. It tells whether the first in line has to be told that there is room.
func (b *SharedBytes[User]) EndTurn(user User, got, all bool) (next bool) {
	i := slices.Index(b.line, user)
	if i < 0 || (!got && !all) {
		return false
	}
	b.line = slices.Delete(b.line, i, i+1)
	if !all {
		b.line = append(b.line, user)
	}
	return i == 0 && all
}
