package httpserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
)

// FreeAddress is an address of this machine for a server that has to have the same one when it is started again. Its port is below
// those that Linux and others give to connections and to listeners on port 0, so that nobody gets it by chance meanwhile.
func FreeAddress(ctx context.Context) (address string, err error) {
	const first, last, tries = 20_000, 32_000, 100
	for range tries {
		var l net.Listener
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(last-first)))
		if err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", fmt.Errorf("no port is free: %w", err)
}
