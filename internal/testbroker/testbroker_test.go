package testbroker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/needs"
)

func TestMain(m *testing.M) { Main(m) }

// A broker is killed, frozen, and gets another password; each time it comes back where it was. The suites of the adapters do that to
// the others, which take long to start.
func TestBrokerIsMistreated(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nats", "redis"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := Start(t, name)
			require.True(t, b.Running())
			ready := func() error { return b.processes[len(b.processes)-1].ready() }
			host := b.URL.Host

			b.Kill()
			require.False(t, b.Running())
			require.Error(t, ready())
			require.NoError(t, b.Restart())
			require.Equal(t, host, b.URL.Host)

			b.Freeze()
			require.Error(t, ready())
			b.Thaw()
			require.Eventually(t, func() bool { return ready() == nil }, needs.Patience(), 20*time.Millisecond)

			require.NoError(t, b.SetPassword("changed"))
			require.Contains(t, b.URL.String(), ":changed@")
			require.NoError(t, ready())
			require.NotEmpty(t, b.Log())
		})
	}
}

func TestUnknownBrokerIsRefused(t *testing.T) {
	t.Parallel()
	_, err := start(t, "zeromq", launching{})
	require.ErrorContains(t, err, `"zeromq" is unknown: it must be one of [rabbitmq nats redis`)
}
