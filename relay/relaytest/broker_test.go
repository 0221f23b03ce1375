package relaytest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/relay"
)

// server is a broker in memory with one log. It speaks a line of JSON per request and answer.
type server struct {
	t        testing.TB
	address  string
	freezing sync.RWMutex // held for writing while it is frozen

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]struct{}
	wg       sync.WaitGroup
	log      []relay.Message
	acked    int // so many of the log
}

type request struct {
	Op       string // open, publish, fetch, ack
	Password string
	Log      string
	Messages []relay.Message
	Offset   int // ack: so many are done
}

type answer struct {
	Error    string
	Messages []relay.Message
	Offset   int // of the first message
}

const (
	mostBody = 64 << 10
	perFetch = 50
)

func startServer(t testing.TB) *server {
	s := &server{t: t, address: "127.0.0.1:0", conns: make(map[net.Conn]struct{})}
	s.Restart()
	t.Cleanup(s.Kill)
	return s
}

func (s *server) Addr() string           { return s.address }
func (s *server) URL(addr string) string { return "memory://me:right@" + addr + "/log" }
func (s *server) Freeze()                { s.freezing.Lock() }
func (s *server) Thaw()                  { s.freezing.Unlock() }

func (s *server) Restart() {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", s.address)
	require.NoError(s.t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener, s.address = listener, listener.Addr().String()
	s.wg.Go(func() { s.accept(listener) })
}

func (s *server) Kill() {
	s.mu.Lock()
	_ = s.listener.Close() // it may be closed already
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *server) accept(listener net.Listener) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		s.wg.Go(func() { s.serve(c) })
	}
}

func (s *server) serve(c net.Conn) {
	defer func() {
		_ = c.Close() // it may be closed already
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, c)
	}()
	in, out := json.NewDecoder(bufio.NewReader(c)), json.NewEncoder(c)
	for {
		var r request
		if in.Decode(&r) != nil {
			return
		}
		s.freezing.RLock()
		a := s.do(r)
		s.freezing.RUnlock()
		if out.Encode(a) != nil {
			return
		}
	}
}

func (s *server) do(r request) (a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Op == "open" && (r.Password != "right" || r.Log != "log"):
		a.Error = "refused"
	case r.Op == "publish":
		for _, m := range r.Messages {
			if len(m.Body) >= mostBody {
				return answer{Error: "too large"}
			}
		}
		s.log = append(s.log, r.Messages...)
	case r.Op == "fetch":
		a.Offset = s.acked
		a.Messages = s.log[s.acked:min(len(s.log), s.acked+perFetch)]
	case r.Op == "ack":
		s.acked = max(s.acked, r.Offset)
	}
	return a
}
