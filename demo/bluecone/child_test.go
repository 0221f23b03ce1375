package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

// TestMain lets the test binary be the program: a child that was started with childEnv set runs
// main. So every test here drives real processes.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	testdb.Main(m)
}

const childEnv = "BLUECONE_TEST_CHILD"

// output collects what a process prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func command(ctx context.Context, t *testing.T, env []string, args ...string) (*exec.Cmd, *output, *output) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(append(os.Environ(), childEnv+"=1"), env...)
	stdout, stderr := &output{}, &output{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

// program runs the program to its end.
func program(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd, out, errs := command(t.Context(), t, env, args...)
	_ = cmd.Run() // the exit status says it
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// server is a process that serves the monolith.
type server struct {
	t      *testing.T
	cmd    *exec.Cmd
	base   string
	stdout *output
	stderr *output
	ended  sync.Once
}

// serveOn starts an instance, which is stopped when the test ends, unless it was killed before.
func serveOn(t *testing.T, dsn string, env []string, args ...string) *server {
	t.Helper()
	return startServer(t, env, append([]string{"serve", "--addr", "127.0.0.1:0", "--dsn", dsn}, args...)...)
}

// startServer starts a process and waits until it says where it listens.
func startServer(t *testing.T, env []string, args ...string) *server {
	t.Helper()
	cmd, stdout, stderr := command(context.Background(), t, env, args...)
	require.NoError(t, cmd.Start())
	s := &server{t: t, cmd: cmd, stdout: stdout, stderr: stderr}
	t.Cleanup(func() {
		s.end(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("the log of process %d:\n%s", cmd.Process.Pid, lastLines(stderr.String(), 40))
		}
	})
	deadline := time.Now().Add(testdb.Patience())
	for s.base == "" {
		for line := range strings.Lines(stdout.String()) {
			if _, base, ok := strings.Cut(line, " listens on "); ok && strings.HasSuffix(line, "\n") {
				s.base = strings.TrimSpace(base)
			}
		}
		require.True(t, time.Now().Before(deadline), "the process does not listen: %s", stderr)
		pause(10 * time.Millisecond)
	}
	return s
}

func lastLines(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

// pause is the beat of a poll.
func pause(d time.Duration) { <-time.After(d) }

// end sends a signal and waits for the process to end.
func (s *server) end(sig os.Signal) (code int) {
	s.ended.Do(func() {
		_ = s.cmd.Process.Signal(sig)
		_ = s.cmd.Wait()
	})
	return s.cmd.ProcessState.ExitCode()
}

// reply is an answer of the API.
type reply struct {
	status int
	body   map[string]any
}

// at reads a value of the body, such as at("wallet", "frozenCents").
func (r reply) at(path ...string) any {
	var v any = r.body
	for _, p := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[p]
	}
	return v
}

func (r reply) text(path ...string) string {
	s, _ := r.at(path...).(string)
	return s
}

const beat = 20 * time.Millisecond

var client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// try makes a call whose outcome may be unknown.
func try(base, method, path, body string, headers ...string) (reply, error) {
	return tryWith(client, base, method, path, body, headers...)
}

func tryWith(c *http.Client, base, method, path, body string, headers ...string) (reply, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, base+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	r := reply{status: res.StatusCode}
	if err == nil && strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		err = json.Unmarshal(text, &r.body)
	}
	return r, err
}

func (s *server) post(path, body string, headers ...string) reply {
	s.t.Helper()
	r, err := try(s.base, http.MethodPost, path, body, headers...)
	require.NoError(s.t, err, path)
	return r
}

func (s *server) get(path string) reply {
	s.t.Helper()
	r, err := try(s.base, http.MethodGet, path, "")
	require.NoError(s.t, err, path)
	return r
}

// eventually waits until ok is true.
func (s *server) eventually(ok func() bool, what string) {
	s.t.Helper()
	testdb.Eventually(s.t, ok, what)
}

// quiet waits until nothing is open.
func (s *server) quiet() {
	s.t.Helper()
	s.eventually(func() bool { return open(s.get("/stats")) == 0 }, "nothing is open any more")
}

// open counts, in an answer of /stats, what the engine still works on.
func open(stats reply) (n float64) {
	for _, where := range [][]string{
		{"outbox", "NEW"},
		{"outbox", "SCHEDULED"},
		{"outbox", "DISPATCHING"},
		{"outbox", "FAILED"},
		{"deliveries", "PENDING"},
		{"deliveries", "PROCESSING"},
		{"deliveries", "FAILED"},
	} {
		v, ok := stats.at(where...).(float64)
		if !ok {
			return -1
		}
		n += v
	}
	return n
}

// shopper is a user with an order.
type shopper struct{ user, coupon, order string }

// user makes one with 100.00, 500 points and a coupon of 3.00.
func (s *server) user() shopper {
	s.t.Helper()
	r := s.post("/users", `{"walletCents":10000,"points":500,"couponCents":[300]}`)
	require.Equal(s.t, 201, r.status, r.body)
	coupons, _ := r.at("couponIds").([]any)
	require.Len(s.t, coupons, 1)
	return shopper{user: r.text("userId"), coupon: coupons[0].(string)}
}

// place makes one who orders for 50.00, with coupon, 10.00 from the wallet and 200 points.
func (s *server) place(headers ...string) shopper {
	s.t.Helper()
	u := s.user()
	r := s.post("/orders", `{"userId":"`+u.user+`","totalCents":5000,"walletCents":1000,"points":200,"couponId":"`+u.coupon+`"}`, headers...)
	require.Equal(s.t, 201, r.status, r.body)
	u.order = r.text("orderId")
	return u
}

// holdings is everything a user has.
type holdings struct {
	available, frozen, spent, points, frozenPoints float64
	coupon                                         string
}

// What the usual order makes of the usual user.
var (
	before   = holdings{10000, 0, 0, 500, 0, "ISSUED"}
	locked   = holdings{9000, 1000, 0, 300, 200, "LOCKED"}
	afterPay = holdings{9000, 0, 1000, 345, 0, "USED"}
	refunded = holdings{10000, 0, 0, 500, 0, "USED"}
)

func holdingsIn(r reply) (h holdings) {
	number := func(path ...string) float64 { v, _ := r.at(path...).(float64); return v }
	h = holdings{
		number("wallet", "availableCents"), number("wallet", "frozenCents"), number("wallet", "spentCents"),
		number("points", "available"), number("points", "frozen"), "",
	}
	for _, c := range r.at("coupons").([]any) {
		h.coupon, _ = c.(map[string]any)["status"].(string)
	}
	return h
}

func (s *server) holdings(user string) holdings {
	s.t.Helper()
	r := s.get("/users/" + user + "/assets")
	require.Equal(s.t, 200, r.status)
	return holdingsIn(r)
}

// eachDialect runs fn with a fresh database of every dialect.
func eachDialect(t *testing.T, fn func(t *testing.T, dsn string)) {
	t.Helper()
	for _, d := range testdb.Dialects() {
		t.Run(d, func(t *testing.T) {
			t.Parallel()
			fn(t, testdb.DSN(t, d))
		})
	}
}

// logLines are the JSON lines of a process's log whose msg is the given one.
func logLines(log, msg string) (found []map[string]any) {
	for s := bufio.NewScanner(strings.NewReader(log)); s.Scan(); {
		var line map[string]any
		if json.Unmarshal(s.Bytes(), &line) == nil && line["msg"] == msg {
			found = append(found, line)
		}
	}
	return found
}
