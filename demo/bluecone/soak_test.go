package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/invariant"
)

const (
	// patient is how long the customers and the checks wait for a deployment that faults befall.
	patient = 10 * time.Minute
	// think is how long a customer thinks before buying: without, they outrun a machine that does other things too,
	// and fill the disk of the database before a long soak is over.
	think = 300 * time.Millisecond
)

// customers is how many come at a time: in a soak more than in a round of all tests, which share the processors.
func customers() int {
	if os.Getenv("BLUECONE_TEST_SOAK") != "" {
		return 6
	}
	return 2
}

// soak drives a world with customers while faults befall it.
type soak struct {
	*world
	seed    uint64
	unknown atomic.Int64 // calls whose outcome the customer was not told
	served  atomic.Int64
	report  *soakReport

	mu     sync.Mutex
	wanted map[string]holdings
	failed []error
	skips  map[*server]float64 // duplicates skipped, as each process said last
}

func newSoak(w *world, seed uint64) *soak {
	return &soak{
		world: w, seed: seed, wanted: make(map[string]holdings), skips: make(map[*server]float64),
		report: &soakReport{dialect: w.name, seed: seed},
	}
}

// insist repeats a call, at any instance, until its outcome is known.
func (s *soak) insist(path, body, key string) reply {
	for deadline := time.Now().Add(patient); time.Now().Before(deadline); pause(beat) {
		r, err := tryWith(hurried, s.node(-1).base, http.MethodPost, path, body, "Idempotency-Key", key)
		if err == nil && r.status != http.StatusServiceUnavailable {
			return r
		}
		s.unknown.Add(1)
	}
	return reply{}
}

// hurried gives up early: another instance may do better.
var hurried = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// shop is one customer: it buys, and pays, cancels or refunds, and says what it must have in the end.
func (s *soak) shop(number int64) (user string, want holdings, err error) {
	key := fmt.Sprint(number)
	u := s.insist("/users", `{"walletCents":10000,"points":500,"couponCents":[300]}`, "user-"+key)
	coupons, _ := u.at("couponIds").([]any)
	if u.status != 201 || len(coupons) != 1 {
		return "", want, fmt.Errorf("user: %v", u)
	}
	user = u.text("userId")
	body, err := json.Marshal(map[string]any{"userId": user, "totalCents": 5000, "walletCents": 1000, "points": 200, "couponId": coupons[0]})
	if err != nil {
		return user, want, err
	}
	o := s.insist("/orders", string(body), "order-"+key)
	if o.status != 201 {
		return user, want, fmt.Errorf("order: %v", o)
	}
	path := "/orders/" + o.text("orderId")
	call := func(what, body string) {
		for range 2 { // callbacks come at least once
			if r := s.insist(path+what, body, ""); r.status != 200 && err == nil {
				err = fmt.Errorf("%s: %v", what, r)
			}
		}
	}
	switch rand.New(rand.NewPCG(s.seed, uint64(number))).IntN(4) {
	case 0:
		return user, locked, nil
	case 1:
		call("/cancel", "")
		return user, before, err
	case 2:
		call("/pay", `{"payNo":"pay-`+key+`"}`)
		return user, afterPay, err
	default:
		call("/pay", `{"payNo":"pay-`+key+`"}`)
		call("/refund", `{"refundId":"refund-`+key+`"}`)
		return user, refunded, err
	}
}

// serve has so many customers at a time come until stop is closed, who think for a while, and waits for the last of them.
func (s *soak) serve(stop <-chan struct{}, customers int, think time.Duration) (wait func()) {
	var all sync.WaitGroup
	for range customers {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				pause(think)
				user, want, err := s.shop(s.served.Add(1))
				s.mu.Lock()
				s.wanted[user] = want
				if err != nil {
					s.failed = append(s.failed, err)
				}
				s.mu.Unlock()
			}
		})
	}
	return all.Wait
}

// befall does one fault, and waits until deliveries progress again.
func (s *soak) befall(f fault) {
	s.t.Helper()
	pause(f.after)
	unknown := s.unknown.Load()
	end, err := nemeses[f.kind].do(s.world, f)
	require.NoError(s.t, err, f)
	pause(f.lasts)
	require.NoError(s.t, end(), f)
	over := time.Now()
	require.NoError(s.t, s.answers(), f)
	took, err := s.progress(over)
	require.NoError(s.t, err, "%v: the instances do not recover", f)
	s.report.note(s.name, f.kind, took, s.unknown.Load()-unknown, s.look(false))
	s.t.Logf("%8v later: %v; recovered in %v", f.after.Round(time.Millisecond), f, took.Round(time.Millisecond))
}

// progress waits until something has been delivered that was not before.
func (s *soak) progress(since time.Time) (time.Duration, error) {
	newest := int64(-1)
	for ; time.Since(since) < patient; pause(beat) {
		if err := s.restart(); err != nil {
			return 0, err
		}
		n, err := s.number("SELECT COALESCE(MAX(id), 0) FROM bc_event_consume_log WHERE status = 'SUCCESS'")
		switch {
		case err != nil:
		case newest < 0:
			newest = n
		case n > newest:
			return time.Since(since), nil
		}
	}
	return 0, fmt.Errorf("nothing was delivered for %v", patient)
}

// look asks for broken invariants: those that hold at any moment, or all when nothing is under way.
func (s *soak) look(quiet bool) []invariant.Violation {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	if s.dialect == "postgres" { // without statistics the questions take minutes
		_, err := s.db.ExecContext(ctx, "ANALYZE bc_outbox_event, bc_event_consume_log")
		require.NoError(s.t, err)
	}
	cfg := invariant.Config{Quiet: quiet, Stuck: 24 * time.Hour} // its clock leaps
	for try := 1; ; try++ {
		found, err := invariant.Check(ctx, s.db, cfg)
		if err == nil {
			return found
		}
		require.Less(s.t, try, 3, "%v", err)
		require.NoError(s.t, s.answers()) // a server may end a while after its disk was full
	}
}

// watchSkips reads from every process now and then how many duplicates it has skipped.
func (s *soak) watchSkips(stop <-chan struct{}) {
	for {
		for i := range nodes {
			s.readSkips(s.node(i))
		}
		select {
		case <-stop:
			return
		case <-time.After(time.Second):
		}
	}
}

func (s *soak) readSkips(n *server) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.base+"/metrics", nil)
	if err != nil {
		return
	}
	res, err := hurried.Do(req)
	if err != nil {
		return // it may be frozen, or dead
	}
	defer res.Body.Close()
	sum := 0.0
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), "} "); ok && strings.HasPrefix(name, "consumer_event_idempotent") {
			v, _ := strconv.ParseFloat(value, 64)
			sum += v
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skips[n] = max(s.skips[n], sum)
}

// judge waits until nothing is open, and checks everything there is to check.
func (s *soak) judge() {
	s.t.Helper()
	for deadline := time.Now().Add(patient); ; pause(beat) {
		require.NoError(s.t, s.restart())
		r, err := tryWith(hurried, s.node(0).base, http.MethodGet, "/stats", "")
		if err == nil && r.status == 200 && open(r) == 0 {
			break
		}
		require.True(s.t, time.Now().Before(deadline), "something is open for ever: %v %v\n%s", r.body, err, strings.Join(s.leftOpen(), "\n"))
	}
	stats := s.node(0).get("/stats")
	r := s.report
	r.events, _ = stats.at("outbox", "SENT").(float64)
	r.deliveries, _ = stats.at("deliveries", "SUCCESS").(float64)
	dead, _ := stats.at("outbox", "DEAD").(float64)
	if dead > 0 {
		why, err := s.strings("SELECT DISTINCT CONCAT(consumer_name, ' ', attempts, ' ', COALESCE(error_message, '')) " +
			"FROM bc_event_consume_log WHERE status = 'DEAD'")
		r.violate(fmt.Sprintf("%.0f events are DEAD: %q %v", dead, why, err))
	}
	for _, err := range s.failed {
		r.violate("a customer was refused: " + err.Error())
	}
	for _, v := range s.look(true) {
		r.violate(v.String())
	}
	for user, want := range s.wanted {
		if got := s.node(0).holdings(user); got != want {
			r.violate(fmt.Sprintf("user %s has %+v, not %+v", user, got, want))
		}
	}
	for i := range s.nodes {
		s.readSkips(s.node(i))
	}
	for _, n := range s.skips {
		r.skipped += n
	}
	r.customers, r.unknown = len(s.wanted), s.unknown.Load()
	if codes := s.endAll(); slices.ContainsFunc(codes, func(code int) bool { return code != 0 }) {
		r.violate(fmt.Sprintf("instances ended by themselves, or did not drain: exit statuses %v", codes))
	}
	code, stdout, stderr := program(s.t, nil, "check", "--dsn", s.ways[0], "--quiet")
	if code != 0 {
		r.violate("check: " + stdout + stderr)
	}
}

// leftOpen tells what keeps the engine busy, and for how many seconds it is to wait.
func (s *soak) leftOpen() []string {
	wait := map[string]string{
		"mysql":    "TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), next_retry_at)",
		"postgres": "extract(epoch FROM next_retry_at - clock_timestamp())",
	}[s.dialect]
	lines, err := s.strings("SELECT CONCAT('event ', event_id, ' ', event_type, ' ', status, ' ', COALESCE(locked_by, ''), ' ', " +
		"lock_version, ' ', COALESCE(" + wait + ", 0), ' s') FROM bc_outbox_event WHERE status NOT IN ('SENT', 'DEAD') ORDER BY id LIMIT 10")
	more, err2 := s.strings("SELECT CONCAT('delivery ', event_id, ' ', consumer_name, ' ', status, ' ', COALESCE(locked_by, ''), ' ', " +
		"attempts, ' ', COALESCE(" + wait + ", 0), ' s') FROM bc_event_consume_log WHERE status NOT IN ('SUCCESS', 'SKIPPED', 'DEAD') " +
		"ORDER BY id LIMIT 10")
	return append(append(lines, more...), fmt.Sprint(errors.Join(err, err2)))
}

// runSoak befalls a deployment with the faults of a schedule.
func runSoak(t *testing.T, dialect string, seed uint64, length, longest time.Duration) {
	t.Helper()
	faults := schedule(seed, kinds(dialect), length, longest)
	t.Logf("seed %d, %d faults; again: BLUECONE_TEST_SEED=%d BLUECONE_TEST_SOAK=%v BLUECONE_TEST_SOAK_DB=%s", seed, len(faults), seed,
		length, dialect)
	s, began := newSoak(newWorld(t, dialect), seed), time.Now()
	stop := make(chan struct{})
	wait := s.serve(stop, customers(), think)
	halt := sync.OnceFunc(func() { close(stop); wait() })
	t.Cleanup(halt)
	go s.watchSkips(stop)
	for _, f := range faults {
		s.befall(f)
	}
	halt()
	s.judge()
	s.report.length = time.Since(began).Round(time.Second)
	s.report.print(t.Output())
	require.NoError(t, s.report.publish(os.Getenv("BLUECONE_TEST_SOAK_WRITE")))
	require.Empty(t, s.report.violations)
}

// TestSoak_ThreeInstances goes through one round of faults on each database, or as many as BLUECONE_TEST_SOAK takes.
// The faults follow from BLUECONE_TEST_SEED.
func TestSoak_ThreeInstances(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes 40 s")
	}
	seed, length, longest := rand.Uint64()>>32, time.Second, 1200*time.Millisecond // one round
	if text := os.Getenv("BLUECONE_TEST_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "BLUECONE_TEST_SEED must be a number")
	}
	if text := os.Getenv("BLUECONE_TEST_SOAK"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		require.NoError(t, err, "BLUECONE_TEST_SOAK must be a duration such as 5m")
		longest = 8 * time.Second
	}
	for _, dialect := range testdb.Servers() {
		if only := os.Getenv("BLUECONE_TEST_SOAK_DB"); only != "" && only != dialect {
			continue
		}
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			runSoak(t, dialect, seed, length, longest)
		})
	}
}

// The faults of a seed are always the same.
func TestScheduleIsReplayed(t *testing.T) {
	t.Parallel()
	names := []string{"black hole", "database killed", "instance killed"}
	one := schedule(7, names, time.Minute, 5*time.Second)
	require.Equal(t, one, schedule(7, names, time.Minute, 5*time.Second))
	require.NotEqual(t, one, schedule(8, names, time.Minute, 5*time.Second))
	for _, name := range names {
		require.True(t, slices.ContainsFunc(one[:len(names)], func(f fault) bool { return f.kind == name }),
			"every kind comes in the first round")
	}
}
