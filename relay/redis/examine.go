package redis

import (
	"context"
	"fmt"
)

// Examine says by which settings the server may lose what it has confirmed, one sentence each. It needs the right to CONFIG GET.
func (c *Connection) Examine(ctx context.Context) ([]string, error) {
	var found []string
	for _, want := range []struct{ name, value, because string }{
		{"appendonly", "yes", "a server that ends loses what it has confirmed"},
		{"appendfsync", "always", "a machine that ends loses what was confirmed in the last second"},
		{"maxmemory-policy", "noeviction", "a server that runs out of memory may remove the stream"},
	} {
		settings, err := c.client.ConfigGet(ctx, want.name).Result()
		if err != nil {
			return nil, classify(err)
		}
		if got := settings[want.name]; got != want.value {
			found = append(found, fmt.Sprintf("%s is %s, not %s: %s", want.name, got, want.value, want.because))
		}
	}
	return found, nil
}
