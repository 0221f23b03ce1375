//go:build !race

// Package attack_test meets the console and the engine as an attacker does: over HTTP, and by rows that anybody who may
// write to the tables can have written. What it attacks is a process of its own, whose memory is measured from outside.
package attack_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/console"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// envVictim says that this process is the one that is attacked, and how it is set up.
const envVictim = "BLUECONE_ATTACK_VICTIM"

// setup of a victim.
type setup struct {
	DSN      string
	Engine   bool          // it delivers events, too
	Personal []string      // ops.Config.Personal
	Timeout  time.Duration // ops.Config.Timeout
}

func TestMain(m *testing.M) {
	how := os.Getenv(envVictim)
	if how == "" {
		testdb.Main(m)
		return
	}
	if err := live(how); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// bought is an event with a handler, whose fields nobody has named to the console.
type bought struct {
	Order string `json:"order"`
	Phone string `json:"phone" bus:"pii"`
}

func (bought) EventType() string              { return "order.bought" }
func (e bought) Aggregate() (kind, id string) { return "ORDER", e.Order }

// large is an event of which only the length matters.
type large struct{ Text string }

func (large) EventType() string            { return "order.large" }
func (large) Aggregate() (kind, id string) { return "LARGE", "1" }

// live is the life of a victim: it serves until its standard input ends.
func live(how string) error {
	var s setup
	if err := json.Unmarshal([]byte(how), &s); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	db, err := testdb.Connect(s.DSN)
	if err != nil {
		return err
	}
	logger := slog.New(slog.DiscardHandler)
	ob, err := outbox.New(db, outbox.Config{Logger: logger, Instance: "victim"})
	if err != nil {
		return err
	}
	b := bus.New(db, bus.Config{Logger: logger})
	shop := b.Consumer("Shop", bus.ConsumerConfig{Replayable: true})
	bus.On(shop, func(_ context.Context, _ bun.Tx, m bus.Message[bought]) error {
		m.RecordResult(map[string]any{"called": m.Payload.Phone, "PHONE": m.Payload.Phone})
		return nil
	})
	bus.On(shop, func(context.Context, bun.Tx, bus.Message[large]) error { return nil })
	if s.Engine {
		p, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
		if err != nil {
			return err
		}
		go func() { fmt.Fprintln(os.Stderr, p.Run(ctx)) }()
	}
	o, err := ops.New(db, ob, ops.Config{Logger: logger, Personal: s.Personal, Timeout: s.Timeout})
	if err != nil {
		return err
	}
	pages, err := console.New(o, console.Config{Authorize: who, Logger: logger})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", pages)
	mux.HandleFunc("/victim/goroutines", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, runtime.NumGoroutine()) })
	mux.HandleFunc("/victim/allocated", func(w http.ResponseWriter, _ *http.Request) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fmt.Fprint(w, m.TotalAlloc>>20)
	})
	return serve(ctx, mux)
}

// serve serves, and says where.
func serve(ctx context.Context, h http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	fmt.Println(listener.Addr()) //nolint:forbidigo // to the parent
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// who takes the name and the role from the header: the tests are whom they say.
func who(r *http.Request) (console.Principal, error) {
	name, role, _ := strings.Cut(r.Header.Get("Authorization"), "/")
	p := console.Principal{Name: name}
	switch role {
	case "viewer":
		p.May = console.ReadOnly()
	case "operator":
		p.May = console.Operator()
	case "admin":
		p.May = append(console.Admin(), console.PayloadView)
	}
	return p, nil
}

// victim is a process that is attacked.
type victim struct {
	t    *testing.T
	url  string
	proc *os.Process
}

// start starts a victim. It ends with the test.
func start(t *testing.T, s setup) *victim {
	t.Helper()
	how, err := json.Marshal(s)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), envVictim+"="+string(how))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "the victim did not start")
	return &victim{t: t, url: "http://" + strings.TrimSpace(address), proc: cmd.Process}
}

// peak is the most memory that the victim has had resident, in MiB.
func (v *victim) peak() int {
	v.t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(v.proc.Pid) + "/status")
	require.NoError(v.t, err, "the victim is dead")
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
			require.NoError(v.t, err)
			return kib >> 10
		}
	}
	require.Fail(v.t, "no VmHWM")
	return 0
}

// maxResident is the most memory that an attacked process may take, in MiB.
const maxResident = 300

// request asks the victim as somebody, such as "anna/admin".
func (v *victim) request(ctx context.Context, as, method, path string, form url.Values) (*http.Request, error) {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(ctx, method, v.url+path, body)
	if err == nil {
		r.Header.Set("Authorization", as)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	return r, err
}

// do asks, and returns the answer without following it.
func (v *victim) do(as, method, path string, form url.Values) (code int, body string) {
	v.t.Helper()
	r, err := v.request(v.t.Context(), as, method, path, form)
	require.NoError(v.t, err)
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	answer, err := client.Do(r)
	require.NoError(v.t, err)
	defer answer.Body.Close()
	read, err := io.ReadAll(answer.Body)
	require.NoError(v.t, err)
	return answer.StatusCode, string(read)
}

func (v *victim) get(as, path string) (code int, body string) {
	v.t.Helper()
	return v.do(as, http.MethodGet, path, nil)
}

// goroutines is how many the victim has.
func (v *victim) goroutines() int { return v.number("goroutines") }

// allocated is how much memory the victim has taken since its start, in MiB, with what it has given back.
func (v *victim) allocated() int { return v.number("allocated") }

func (v *victim) number(what string) int {
	v.t.Helper()
	_, body := v.get("", "/victim/"+what)
	n, err := strconv.Atoi(body)
	require.NoError(v.t, err)
	return n
}

// each runs fn with a victim on a database of every kind.
func each(t *testing.T, s setup, fn func(t *testing.T, db *bun.DB, v *victim)) {
	t.Helper()
	for _, d := range testdb.Dialects() {
		t.Run(d, func(t *testing.T) {
			s := s
			s.DSN = testdb.DSN(t, d)
			db := testdb.OpenDSN(t, s.DSN)
			require.NoError(t, migrate(t, db))
			fn(t, db, start(t, s))
		})
	}
}

func execSQL(t *testing.T, db *bun.DB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	require.NoError(t, err)
}
