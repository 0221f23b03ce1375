//go:build !race

package attack_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

const (
	// abandoned is how many searches and examinations an attacker starts and does not wait for, at least: it goes on while somebody else
	// reads.
	abandoned = 3000
	// atATime is how many of them it starts at once, every second: three times what one principal may send.
	atATime = 300
	// healthy is how many pages somebody else reads meanwhile, at least.
	healthy = 200
	// slowest is within what time 99 of 100 of these have their answer. On a machine on which an undisturbed reader's p99 is
	// more than slowest/calibration, 50 ms, it is calibration times that, and never more than atMost.
	slowest     = time.Second
	calibration = 20
	atMost      = 5 * time.Second
	// rounds is how often that is tried.
	rounds = 3
)

// hostileTypes are rows that make a search by key look for as many events as it may: 3,000 types, 20 tenants.
func hostileTypes(t *testing.T, db *bun.DB) {
	t.Helper()
	values := make([]string, 0, 3000)
	for i := range 3000 {
		values = append(values, fmt.Sprintf("('x%d', 'evil.t%d')", i%50, i))
	}
	execSQL(t, db, "INSERT INTO bc_consumer_type (consumer_name, event_type) VALUES "+strings.Join(values, ", "))
	values = values[:0]
	for i := range 1000 {
		values = append(values, fmt.Sprintf("(%d, 'EVIL', '%d', 'evil.t%d', 'evil-%d', '{}', 'SENT')", i%20+1, i, i, i))
	}
	execSQL(t, db, "INSERT INTO bc_outbox_event (tenant_id, aggregate_type, aggregate_id, event_type, event_id, event_payload, status) "+
		"VALUES "+strings.Join(values, ", "))
}

// pages reads pages as somebody healthy, one after the other while it shall, and returns how long each took, sorted.
func (v *victim) pages(t *testing.T, shall func(n int) bool) []time.Duration {
	t.Helper()
	pace := time.NewTicker(20 * time.Millisecond) // fewer than one principal may send
	defer pace.Stop()
	var took []time.Duration
	for ; shall(len(took)); <-pace.C {
		path := []string{"/events", "/api/v1/consumers", "/event?id=evil-7"}[len(took)%3]
		began := time.Now()
		code, body := v.get("rita/viewer", path)
		require.Equal(t, http.StatusOK, code, "%s: %s", path, body)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took
}

func median(took []time.Duration) time.Duration { return took[len(took)/2].Round(time.Millisecond) }

func p99of(took []time.Duration) time.Duration { return took[len(took)*99/100].Round(time.Millisecond) }

// Who starts searches and examinations and goes away, thousands of them, delays nobody else and takes no memory.
func TestAbandonedSearchesDelayNobody(t *testing.T) {
	each(t, setup{}, func(t *testing.T, db *bun.DB, v *victim) {
		hostileTypes(t, db)
		before := v.goroutines()
		for round := 1; ; round++ { // a machine may be slow for a moment by what others do on it
			alone := p99of(v.pages(t, func(n int) bool { return n < healthy }))
			attacked := p99of(v.besideAttack(t))
			t.Logf("p99 undisturbed %v, beside the attack %v; peak %d MiB", alone, attacked, v.peak())
			require.LessOrEqual(t, v.peak(), maxResident)
			require.Eventually(t, func() bool {
				return v.goroutines() <= before+20
			}, 2*time.Minute, 50*time.Millisecond, "what nobody waits for goes on")
			if attacked <= min(max(slowest, calibration*alone), atMost) {
				return
			}
			require.Less(t, round, rounds, "a healthy reader waits for others")
		}
	})
}

// besideAttack reads pages as somebody healthy while others start searches and go away, and returns how long each took, sorted.
func (v *victim) besideAttack(t *testing.T) []time.Duration {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var attackers sync.WaitGroup
	var sent, busy atomic.Int64
	defer attackers.Wait()
	defer stop()
	for range atATime {
		attackers.Go(func() { v.attack(ctx, t, &sent, &busy) })
	}
	took := v.pages(t, func(n int) bool { return n < healthy || sent.Load() < abandoned })
	stop()
	attackers.Wait()
	t.Logf("%d pages beside %d abandoned searches: p50 %v", len(took), sent.Load(), median(took))
	require.Positive(t, busy.Load(), "searches that found too many under way")
	return took
}

// attack starts a search every second and does not wait for it.
func (v *victim) attack(ctx context.Context, t *testing.T, sent, busy *atomic.Int64) {
	t.Helper()
	client := http.Client{Timeout: 100 * time.Millisecond}
	defer client.CloseIdleConnections()
	pace := time.NewTicker(time.Second)
	defer pace.Stop()
	for n := sent.Add(1); ctx.Err() == nil; n = sent.Add(1) {
		path := "/api/v1/events?idempotencyKey=k" + strconv.FormatInt(n, 10)
		if n%4 == 0 { // the page that asks the database most often
			path = "/doctor"
		}
		r, err := v.request(ctx, "eve/viewer", http.MethodGet, path, nil)
		if err != nil {
			continue
		}
		if answer, err := client.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
			refused(t, answer, busy)
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
		}
	}
}

// refused checks that whoever is not let in learns when to ask again, and counts those of whom too many are under way.
func refused(t *testing.T, answer *http.Response, busy *atomic.Int64) {
	t.Helper()
	switch answer.StatusCode {
	case http.StatusOK:
		return
	case http.StatusServiceUnavailable:
		busy.Add(1)
	case http.StatusTooManyRequests:
	default:
		t.Errorf("%s: %s", answer.Request.URL, answer.Status)
	}
	if answer.Header.Get("Retry-After") == "" {
		t.Errorf("%s: %s without Retry-After", answer.Request.URL, answer.Status)
	}
}

// Rows of four megabytes are read as far as a page shows them.
func TestPagesReadLittleOfLargeRows(t *testing.T) {
	each(t, setup{Personal: []string{"phone"}, Timeout: time.Minute}, func(t *testing.T, db *bun.DB, v *victim) {
		large := `"` + strings.Repeat("x", 4<<20) + `"`
		kept := large // MySQL keeps 64 KiB of an error
		if db.Dialect().Name().String() == "mysql" {
			kept = large[:60_000]
		}
		for i := range 20 {
			id := strconv.Itoa(i)
			execSQL(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, "+
				"last_error, status) VALUES ('LARGE', '1', 'order.large', ?, ?, ?, ?, 'DEAD')", "l"+id, large, large, kept)
			execSQL(t, db, "INSERT INTO bc_consumer (name, event_types, aliases) VALUES (?, ?, '')", "Large"+id, kept)
			execSQL(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, consume_result, error_message, "+
				"aggregate_type, aggregate_id) VALUES ('Shop', ?, 'order.large', 'DEAD', ?, ?, 'LARGE', '1')", "l"+id, large, kept)
			execSQL(t, db, "INSERT INTO bc_delivery_attempt (consumer_name, event_id, attempt, outcome, error_message, instance, duration_us) "+
				"VALUES ('Shop', ?, 1, 'DEAD', ?, 'i', 1)", "l"+id, kept)
		}
		execSQL(t, db, "INSERT INTO bc_audit_log (actor, action, target, reason, details) VALUES ('a', 'b', 'l1', ?, ?)", kept, kept)
		var readers sync.WaitGroup
		for i := range 4 { // several at a time
			readers.Go(func() {
				for _, path := range []string{
					"/events?limit=", "/api/v1/events?limit=", "/api/v1/dead?lang=", "/api/v1/overview?lang=", "/forensics?key=l1&x=",
					"/api/v1/event?id=l1&lang=", "/api/v1/consumers?lang=", "/api/v1/audit?limit=", "/api/v1/events?consumer=Shop&limit=",
					"/api/v1/doctor?lang=", "/doctor?x=",
				} {
					r, err := v.request(t.Context(), fmt.Sprintf("reader%d/viewer", i), http.MethodGet, path+strconv.Itoa(100+i), nil)
					if err != nil {
						t.Error(err)
						return
					}
					answer, err := http.DefaultClient.Do(r)
					if err != nil {
						t.Error(err)
						return
					}
					n, _ := io.Copy(io.Discard, answer.Body)
					_ = answer.Body.Close()
					if answer.StatusCode != http.StatusOK || n > 8<<20 {
						t.Errorf("%s: %d, %d bytes", path, answer.StatusCode, n)
					}
				}
			})
		}
		readers.Wait()
		http.DefaultClient.CloseIdleConnections()
		t.Logf("peak %d MiB", v.peak())
		require.LessOrEqual(t, v.peak(), maxResident)
	})
}

// The engine reads a long list of event types once, not with each of the consumer's types: 3,000 times 60 kB would be 180 MB
// for every look.
func TestTheRegistryIsReadOnceForEachConsumer(t *testing.T) {
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			address := testdb.DSN(t, name)
			db := testdb.OpenDSN(t, address)
			require.NoError(t, migrate(t, db))
			hostileTypes(t, db)
			execSQL(t, db, "INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('x1', ?, '')", "["+strings.Repeat(" ", 60_000)+"]")
			execSQL(t, db, "UPDATE bc_consumer_type SET consumer_name = 'x1'")
			execSQL(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload) "+
				"VALUES ('LARGE', '0', 'order.large', 'l0', '{}')")
			v := start(t, setup{DSN: address, Engine: true})
			require.Eventually(t, func() bool {
				var status string
				require.NoError(t, db.QueryRowContext(t.Context(), "SELECT status FROM bc_outbox_event WHERE event_id = 'l0'").Scan(&status))
				return status == "SENT"
			}, 2*time.Minute, 50*time.Millisecond)
			t.Logf("allocated %d MiB", v.allocated())
			require.Less(t, v.allocated(), 100)
		})
	}
}

// Events of eight megabytes are delivered a few at a time, and so are those that are tried again.
func TestClaimsAreBoundedByBytes(t *testing.T) {
	payload := `{"Text":"` + strings.Repeat("x", 8<<20) + `"}`
	for _, name := range testdb.Dialects() {
		t.Run(name, func(t *testing.T) {
			address := testdb.DSN(t, name)
			db := testdb.OpenDSN(t, address)
			require.NoError(t, migrate(t, db))
			const fresh, retried = 24, 24
			execSQL(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload) "+
				"VALUES ('LARGE', '0', 'order.large', 'l0', ?)", payload)
			for i := 1; i < fresh+retried; i++ { // the database copies faster than it is told
				status := "NEW"
				if i >= fresh {
					status = "FAILED"
				}
				id := "l" + strconv.Itoa(i)
				execSQL(t, db, "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status) "+
					"SELECT 'LARGE', ?, 'order.large', ?, event_payload, ? FROM bc_outbox_event WHERE event_id = 'l0'", strconv.Itoa(i), id, status)
				if i >= fresh {
					execSQL(t, db, "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, attempts, aggregate_type, "+
						"aggregate_id, outbox_id, next_retry_at) SELECT 'Shop', event_id, event_type, 'FAILED', 1, aggregate_type, aggregate_id, id, "+
						"created_at FROM bc_outbox_event WHERE event_id = ?", id)
				}
			}
			v := start(t, setup{DSN: address, Engine: true})
			require.Eventually(t, func() bool {
				var sent int
				require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'SENT'").Scan(&sent))
				return sent == fresh+retried
			}, 5*time.Minute, 100*time.Millisecond)
			t.Logf("peak %d MiB", v.peak())
			require.LessOrEqual(t, v.peak(), maxResident)
		})
	}
}
