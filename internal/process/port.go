package process

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort is a port of 127.0.0.1 on which nobody listens. It is below those that systems give to connections on their way out:
// while a server is away, such a connection would take its port, or a client of the server would connect to itself.
func FreePort() (string, error) {
	const first, last, tries = 15000, 32000, 100
	var lc net.ListenConfig
	var failed error
	for range tries {
		port := strconv.Itoa(first + rand.IntN(last-first))
		l, err := lc.Listen(context.Background(), "tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			return port, l.Close()
		}
		failed = errors.Join(failed, err)
	}
	return "", failed
}
