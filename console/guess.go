package console

import (
	"crypto/sha256"
	"net"
	"sync"
	"time"
)

// guesses counts wrong passwords. Success does not reset a count: behind a proxy it may be that of somebody else.
type guesses struct {
	mu   sync.Mutex
	seen map[guess]wrongs
}

// guess is a name and an address, as a hash: both are as long as somebody likes.
type guess [sha256.Size]byte

// wrongs is how many wrong passwords there were, and until when they count.
type wrongs struct {
	count int
	until time.Time
}

func newGuesses() *guesses { return &guesses{seen: make(map[guess]wrongs)} }

func guessOf(address, name string) guess {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	return sha256.Sum256([]byte(address + "\x00" + name))
}

func (g *guesses) tooMany(key guess, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.seen[key]
	return w.count >= maxWrong && now.Before(w.until)
}

func (g *guesses) add(key guess, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w, ok := g.seen[key]
	if !ok {
		g.makeRoom(now)
	}
	if !now.Before(w.until) {
		w = wrongs{until: now.Add(wrongTime)}
	}
	w.count++
	g.seen[key] = w
}

// makeRoom forgets those that do not count any more, or the one that counts least long. Whoever sends many names to be
// forgotten sends that many more requests for each guess. It needs g.mu.
func (g *guesses) makeRoom(now time.Time) {
	if len(g.seen) < maxGuessed {
		return
	}
	var first guess
	var until time.Time
	for key, w := range g.seen {
		if !now.Before(w.until) {
			delete(g.seen, key)
		} else if until.IsZero() || w.until.Before(until) {
			first, until = key, w.until
		}
	}
	if len(g.seen) >= maxGuessed {
		delete(g.seen, first)
	}
}
