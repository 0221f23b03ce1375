//go:build !oldrelease

package program

import (
	"github.com/bluecone-go/bluecone/bus"
)

// wallet is a consumer that was once called Purse. Migration 7 has given what it did under that name to the present one,
// which is its key.
func wallet(bool) (name string, cfg bus.ConsumerConfig) { return "Wallet", bus.ConsumerConfig{} }

// newcomers are consumers that the release before does not have.
func (p *program) newcomers(b *bus.Bus) {
	bus.On(b.Consumer("Orphans", bus.ConsumerConfig{}), handler[orphan](p, "Orphans"))
}
