package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

// fleet is a deployment of several instances, one of which is killed now and then.
type fleet struct {
	t     *testing.T
	dsn   string
	mu    sync.Mutex
	nodes []*server
	kills int
}

func newFleet(t *testing.T, dsn string, n int) *fleet {
	t.Helper()
	f := &fleet{t: t, dsn: dsn}
	for i := range n {
		f.nodes = append(f.nodes, serveOn(t, dsn, nil, "--node", fmt.Sprintf("node%d", i)))
	}
	return f
}

func (f *fleet) any() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[rand.IntN(len(f.nodes))].base
}

// killing kills one instance after the other, and starts another in its place, until stop is closed.
func (f *fleet) killing(every time.Duration, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-time.After(every):
		}
		f.mu.Lock()
		victim := f.nodes[i%len(f.nodes)]
		f.mu.Unlock()
		victim.end(syscall.SIGKILL)
		next := serveOn(f.t, f.dsn, nil, "--node", fmt.Sprintf("node%d-%d", i%len(f.nodes), i))
		f.mu.Lock()
		f.nodes[i%len(f.nodes)] = next
		f.kills++
		f.mu.Unlock()
	}
}

// insist repeats a call, at any instance, until its outcome is known.
func (f *fleet) insist(path, body, key string) reply {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); pause(10 * time.Millisecond) {
		r, err := try(f.any(), "POST", path, body, "Idempotency-Key", key)
		if err == nil && r.status != 503 {
			return r
		}
	}
	return reply{}
}

// shop is one customer: it buys, and pays, cancels or refunds, and says what it must have in the end.
func (f *fleet) shop(key string) (user string, want holdings, err error) {
	u := f.insist("/users", `{"walletCents":10000,"points":500,"couponCents":[300]}`, "user-"+key)
	coupons, _ := u.at("couponIds").([]any)
	if u.status != 201 || len(coupons) != 1 {
		return "", want, fmt.Errorf("user: %v", u)
	}
	user = u.text("userId")
	body, err := json.Marshal(map[string]any{"userId": user, "totalCents": 5000, "walletCents": 1000, "points": 200, "couponId": coupons[0]})
	if err != nil {
		return user, want, err
	}
	o := f.insist("/orders", string(body), "order-"+key)
	if o.status != 201 {
		return user, want, fmt.Errorf("order: %v", o)
	}
	path := "/orders/" + o.text("orderId")
	call := func(what, body string) {
		for range 2 { // callbacks come at least once
			if r := f.insist(path+what, body, ""); r.status != 200 && err == nil {
				err = fmt.Errorf("%s: %v", what, r)
			}
		}
	}
	switch rand.IntN(4) {
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

// soak drives three instances with concurrent customers while one of them is killed and restarted
// every few seconds. When all is quiet nothing is open, nothing is DEAD, and everybody has what
// their order says.
func soak(t *testing.T, dsn string, length time.Duration) {
	t.Helper()
	f := newFleet(t, dsn, 3)
	stop := make(chan struct{})
	var killer, customers sync.WaitGroup
	killer.Go(func() { f.killing(3*time.Second, stop) })
	var mu sync.Mutex
	wanted := make(map[string]holdings)
	var failed []error
	var number atomic.Int64
	end := time.Now().Add(length)
	for range 4 {
		customers.Go(func() {
			for time.Now().Before(end) {
				user, want, err := f.shop(fmt.Sprint(number.Add(1)))
				mu.Lock()
				wanted[user] = want
				if err != nil {
					failed = append(failed, err)
				}
				mu.Unlock()
			}
		})
	}
	customers.Wait()
	close(stop)
	killer.Wait()
	require.Empty(t, failed)
	f.nodes[0].quiet()
	stats := f.nodes[0].get("/stats")
	require.InDelta(t, 0, stats.at("outbox", "DEAD"), 0, "%v", stats.body)
	require.InDelta(t, 0, stats.at("deliveries", "DEAD"), 0, "%v", stats.body)
	for user, want := range wanted {
		require.Equal(t, want, f.nodes[0].holdings(user), "user %s", user)
	}
	t.Logf("%d customers, %d kills, %v events and %v deliveries", len(wanted), f.kills, stats.at("outbox", "SENT"), stats.at("deliveries", "SUCCESS"))
	for _, s := range f.nodes {
		require.Equal(t, 0, s.end(syscall.SIGTERM))
	}
}

func TestSoak_ThreeInstances(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes 20 s")
	}
	length := 20 * time.Second
	if text := os.Getenv("BLUECONE_TEST_SOAK"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		require.NoError(t, err, "BLUECONE_TEST_SOAK must be a duration such as 5m")
	}
	soak(t, testdb.DSN(t, "mysql"), length)
}
