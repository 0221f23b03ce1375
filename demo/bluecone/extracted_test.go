package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/demo/bluecone/module/points"
	"github.com/bluecone-go/bluecone/demo/httpserver"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// extraction is a monolith whose points move into a process of their own while customers come: three processes, two databases.
type extraction struct {
	t    *testing.T
	args map[string][]string // how each process is started
	shop *bun.DB             // the monolith's database
	own  string              // the DSN of the points' own

	mu        sync.Mutex
	processes map[string]*server
	wanted    map[string]float64 // points, by user
	movements int                // of the points, for orders
	failed    []error
}

const (
	pointsService = "points"
	ledgerService = "ledger"
	granted       = 500
	used          = 100
)

func newExtraction(t *testing.T, dialect string) *extraction {
	t.Helper()
	dsn, own, dir := testdb.DSN(t, dialect), testdb.DSN(t, dialect), t.TempDir()
	address := func() string {
		a, err := httpserver.FreeAddress(t.Context())
		require.NoError(t, err)
		return a
	}
	atShop, atLedger, atPoints := address(), address(), address()
	file := func(name, text string) string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		return filepath.Join(dir, name)
	}
	tokens := file("tokens.json", `{"secret-of-points": {"name": "points", "publish": [], "consume": ["`+points.Consumer+`"]}}`)
	x := &extraction{
		t: t, shop: testdb.OpenDSN(t, dsn), own: own, processes: make(map[string]*server), wanted: make(map[string]float64),
		args: map[string][]string{
			shopService:   {shopService, "--addr", atShop, "--dsn", dsn},
			ledgerService: {ledgerService, "--addr", atLedger, "--dsn", dsn, "--tokens", tokens},
			pointsService: {
				pointsService, "--addr", atPoints, "--dsn", own, "--from", dsn, "--ledger", "http://" + atLedger,
				"--token", file("token", "secret-of-points\n"),
			},
		},
	}
	x.start(shopService)
	x.args[shopService] = append(x.args[shopService], "--points", "http://"+atPoints) // from its next start on
	return x
}

func (x *extraction) start(name string) {
	x.t.Helper()
	s := startServer(x.t, []string{lockTimeout}, x.args[name]...)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.processes[name] = s
}

func (x *extraction) process(name string) *server {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.processes[name]
}

// insist repeats a call until its outcome is known.
func (x *extraction) insist(path, body, key string) reply {
	for deadline := time.Now().Add(patient); time.Now().Before(deadline); pause(beat) {
		r, err := tryWith(hurried, x.process(shopService).base, http.MethodPost, path, body, "Idempotency-Key", key)
		if err == nil && r.status != http.StatusServiceUnavailable {
			return r
		}
	}
	return reply{}
}

// visit is one customer, who orders with points, and pays, cancels, or pays and wants the money back.
func (x *extraction) visit() error {
	key, cents, fate := fmt.Sprint(rand.Uint64()), rand.IntN(20_000)+used, rand.IntN(3)
	user := x.insist("/users", fmt.Sprintf(`{"points":%d}`, granted), "user-"+key).text("userId")
	body, err := json.Marshal(map[string]any{"userId": user, "totalCents": cents, "points": used})
	if err != nil {
		return err
	}
	path := "/orders/" + x.insist("/orders", string(body), "order-"+key).text("orderId")
	available, movements := float64(granted), 2 // frozen, released
	var answers []reply
	if fate == 0 {
		answers = append(answers, x.insist(path+"/cancel", `{}`, ""))
	} else {
		answers = append(answers, x.insist(path+"/pay", `{"payNo":"pay-`+key+`"}`, ""))
		available, movements = float64(granted-used+(cents-used)/100), 2+min((cents-used)/100, 1) // committed, and earned if it is anything
	}
	if fate == 2 {
		answers = append(answers, x.insist(path+"/refund", `{"refundId":"refund-`+key+`"}`, ""))
		available, movements = granted, movements+1+min((cents-used)/100, 1)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wanted[user] = available
	x.movements += movements
	for _, r := range answers {
		if r.status != http.StatusOK {
			err = errors.Join(err, fmt.Errorf("%s: %v", path, r))
		}
	}
	return err
}

// open has customers come until the function is called that it returns.
func (x *extraction) open() (closed func()) {
	stop := make(chan struct{})
	wait := visitors(stop, x.visit, func(err error) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.failed = append(x.failed, err)
	})
	closed = sync.OnceFunc(func() { close(stop); wait() })
	x.t.Cleanup(closed)
	return closed
}

// move takes the steps of docs/extracting-a-module.md, and kills the process that copies now and then. It returns how many movements
// the monolith has made.
func (x *extraction) move() (left int) {
	x.t.Helper()
	ctx, op := x.t.Context(), outbox.Operation{Actor: "ann", Reason: "the points move out"}
	ob, err := outbox.New(x.shop, outbox.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(x.t, err)
	x.start(ledgerService)
	require.NoError(x.t, ob.Pause(ctx, op, points.Consumer, time.Hour))
	pause(think)
	require.Zero(x.t, x.process(shopService).end(syscall.SIGTERM))
	x.start(shopService)
	for range 4 {
		cmd, _, _ := command(context.Background(), x.t, nil, x.args[pointsService]...)
		require.NoError(x.t, cmd.Start())
		pause(rand.N(think))
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	}
	x.start(pointsService)
	left = x.count(x.shop)
	require.NoError(x.t, ob.Resume(ctx, op, points.Consumer))
	return left
}

// count counts the movements of orders. Grants are left out: an account is opened before the user's transaction ends, so that one of a user
// who was never made stays behind when the monolith is killed.
func (x *extraction) count(db *bun.DB) (n int) {
	x.t.Helper()
	require.NoError(x.t, db.QueryRowContext(x.t.Context(), "SELECT COUNT(*) FROM demo_points_ledger WHERE order_id <> ''").Scan(&n))
	return n
}

// kill kills one after the other in rounds, for so long, and starts it again.
func (x *extraction) kill(length time.Duration) {
	x.t.Helper()
	victims, kills := []string{pointsService, ledgerService, shopService}, 0
	for over := time.Now().Add(length); kills == 0 || time.Now().Before(over); {
		rand.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		for _, victim := range victims {
			pause(rand.N(time.Second))
			x.process(victim).end(syscall.SIGKILL)
			pause(rand.N(time.Second))
			x.start(victim)
			kills++
		}
	}
	x.t.Logf("%d kills", kills)
}

// judge waits until all is quiet, and accounts for every movement.
func (x *extraction) judge(left int) {
	x.t.Helper()
	require.Empty(x.t, x.failed)
	shop := x.process(shopService)
	require.Eventually(x.t, func() bool {
		r, err := try(shop.base, http.MethodGet, "/stats", "")
		return err == nil && open(r) == 0
	}, patient, beat, "nothing is open any more")
	require.InDelta(x.t, 0, shop.get("/stats").at("outbox", "DEAD"), 0)
	own := testdb.OpenDSN(x.t, x.own)
	require.Equal(x.t, left, x.count(x.shop), "the monolith moves no points any more")
	require.Equal(x.t, x.movements, x.count(own), "each movement is there, once")
	for user, wanted := range x.wanted {
		h := shop.holdings(user)
		require.InDelta(x.t, wanted, h.points, 0, user)
		require.InDelta(x.t, 0, h.frozenPoints, 0, user)
	}
	facade, err := points.New(own)
	require.NoError(x.t, err)
	broken, err := facade.Verify(x.t.Context())
	require.NoError(x.t, err)
	require.Empty(x.t, broken)
	x.t.Logf("%d users, %d movements, %d of them in the monolith", len(x.wanted), x.movements, left)
	for name, s := range x.processes {
		require.Zero(x.t, s.end(syscall.SIGTERM), "%s: SIGTERM drains and exits 0", name)
	}
	code, stdout, stderr := program(x.t, nil, "check", "--dsn", x.args[shopService][4], "--quiet")
	require.Zero(x.t, code, "%s%s", stdout, stderr)
}

// TestPointsMoveOutUnderKills has customers come while the points move into a process of their own, and while that, the ledger and the
// monolith are killed. In the end every movement is accounted for. The kills go on for BLUECONE_TEST_POINTS; without that each is killed
// once.
func TestPointsMoveOutUnderKills(t *testing.T) {
	t.Parallel()
	var length time.Duration
	if text := os.Getenv("BLUECONE_TEST_POINTS"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		require.NoError(t, err, "BLUECONE_TEST_POINTS must be a duration such as 10m")
	}
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			x := newExtraction(t, dialect)
			closed := x.open()
			pause(think)
			left := x.move()
			x.kill(length)
			closed()
			x.judge(left)
		})
	}
}
