package remote_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/process"
)

// gate passes connections on to whichever of its targets takes them, as a balancer does, and can cut them.
type gate struct {
	listener net.Listener
	targets  []string

	mu    sync.Mutex
	links map[net.Conn]struct{}
	all   sync.WaitGroup
}

func listen(t *testing.T, targets ...string) *gate {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", freeAddress(t))
	require.NoError(t, err)
	g := &gate{listener: l, targets: targets, links: make(map[net.Conn]struct{})}
	g.all.Go(g.run)
	t.Cleanup(func() {
		_ = l.Close()
		g.cut()
		g.all.Wait()
	})
	return g
}

func (g *gate) addr() string { return g.listener.Addr().String() }

func (g *gate) run() {
	for {
		conn, err := g.listener.Accept()
		if err != nil {
			return
		}
		g.all.Go(func() { g.pass(conn) })
	}
}

// pass copies in both directions until one of them ends.
func (g *gate) pass(client net.Conn) {
	server := g.dial()
	if server == nil {
		_ = client.Close()
		return
	}
	g.mu.Lock()
	g.links[client], g.links[server] = struct{}{}, struct{}{}
	g.mu.Unlock()
	var both sync.WaitGroup
	end := func() {
		_ = client.Close()
		_ = server.Close()
	}
	both.Go(func() { _, _ = io.Copy(server, client); end() })
	both.Go(func() { _, _ = io.Copy(client, server); end() })
	both.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.links, client)
	delete(g.links, server)
}

// dial connects to one of the targets, or returns nil if none answers.
func (g *gate) dial() net.Conn {
	dialer := net.Dialer{Timeout: time.Second}
	for _, i := range rand.Perm(len(g.targets)) {
		if conn, err := dialer.DialContext(context.Background(), "tcp", g.targets[i]); err == nil {
			return conn
		}
	}
	return nil
}

// cut resets all connections.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for conn := range g.links {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := process.FreePort()
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.1", port)
}

func hostOf(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	return u.Host
}
