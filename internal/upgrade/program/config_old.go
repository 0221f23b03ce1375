//go:build oldrelease

package program

import "github.com/bluecone-go/bluecone/bus"

// wallet is the consumer under its former name, or under its present one.
func wallet(former bool) (name string, cfg bus.ConsumerConfig) {
	if former {
		return "Purse", bus.ConsumerConfig{}
	}
	return "Wallet", bus.ConsumerConfig{Aliases: []string{"Purse"}}
}

func (*program) newcomers(*bus.Bus) {}
