package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testbroker"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/invariant"
)

// brokerURL is what the demo's programs are given to reach a broker of the tests, of which this test has a part for itself.
func brokerURL(t *testing.T, name string, b *testbroker.Broker) string {
	t.Helper()
	u, part := *b.URL, fmt.Sprintf("T%d", rand.Uint32())
	switch name {
	case "nats", "kafka":
		u.Path = "/" + part
	case "redis":
		u.Path, u.RawQuery = "/0", url.Values{"stream": {part}}.Encode()
	case "rabbitmq":
		u.RawQuery = url.Values{"exchange": {part}}.Encode()
	case "rocketmq":
		u.Path = "/" + part
		require.NoError(t, b.CreateFIFO(part))
		require.NoError(t, b.CreateGroups(loyaltyService))
	default:
		require.Fail(t, "no URL for "+name)
	}
	return u.String()
}

// deployment is two instances of each service, a database for each, and a broker between them.
type deployment struct {
	t      *testing.T
	broker *testbroker.Broker
	url    string
	dsn    map[string]string // by service

	mu     sync.Mutex
	nodes  map[string][]*server // by service
	wanted map[string]int       // stamps, by user
	events int                  // that have to land
	failed []error
}

const (
	shopService    = "serve"
	loyaltyService = "loyalty"
	perService     = 2
)

func newDeployment(t *testing.T, broker, dialect string, killsBroker bool) *deployment {
	t.Helper()
	d := &deployment{
		t: t, broker: testbroker.Start(t, broker), wanted: make(map[string]int), nodes: make(map[string][]*server),
		dsn: map[string]string{shopService: testdb.DSN(t, dialect), loyaltyService: testdb.DSN(t, dialect)},
	}
	d.url = brokerURL(t, broker, d.broker)
	if killsBroker {
		d.broker.Kill() // both wait for it
	}
	for _, service := range []string{shopService, loyaltyService} {
		for i := range perService {
			d.nodes[service] = append(d.nodes[service], nil)
			d.start(service, i)
		}
	}
	return d
}

func (d *deployment) start(service string, i int) {
	d.t.Helper()
	args := []string{service, "--addr", "127.0.0.1:0", "--dsn", d.dsn[service]}
	var env []string
	if service == shopService {
		env, args = []string{lockTimeout}, append(args, "--relay", d.url)
	} else {
		args = append(args, "--inbox", d.url)
	}
	s := startServer(d.t, env, args...)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes[service][i] = s
}

// node is an instance of a service; any for a negative i.
func (d *deployment) node(service string, i int) *server {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i < 0 {
		i = rand.IntN(perService)
	}
	return d.nodes[service][i]
}

// insist repeats a call, at any instance of the monolith, until its outcome is known.
func (d *deployment) insist(path, body, key string) reply {
	for deadline := time.Now().Add(patient); time.Now().Before(deadline); pause(beat) {
		r, err := tryWith(hurried, d.node(shopService, -1).base, http.MethodPost, path, body, "Idempotency-Key", key)
		if err == nil && r.status != http.StatusServiceUnavailable {
			return r
		}
	}
	return reply{}
}

// shop is one customer: it buys, pays, and now and then wants its money back.
func (d *deployment) shop() error {
	key, total, wantsBack := fmt.Sprint(rand.Uint64()), rand.IntN(20_000)+1, rand.IntN(3) == 0
	user := d.insist("/users", `{}`, "user-"+key).text("userId")
	body, err := json.Marshal(map[string]any{"userId": user, "totalCents": total})
	if err != nil {
		return err
	}
	path := "/orders/" + d.insist("/orders", string(body), "order-"+key).text("orderId")
	if r := d.insist(path+"/pay", `{"payNo":"pay-`+key+`"}`, ""); r.status != http.StatusOK {
		return fmt.Errorf("pay: %v", r)
	}
	stamps, events := total/1000, 1
	if wantsBack {
		if r := d.insist(path+"/refund", `{"refundId":"refund-`+key+`"}`, ""); r.status != http.StatusOK {
			return fmt.Errorf("refund: %v", r)
		}
		stamps, events = 0, 2
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted[user] += stamps
	d.events += events
	return nil
}

// serve has customers come until stop is closed, and waits for the last of them.
func (d *deployment) serve(stop <-chan struct{}) (wait func()) {
	return visitors(stop, d.shop, func(err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.failed = append(d.failed, err)
	})
}

// visitors come one after the other, three at a time, until stop is closed.
func visitors(stop <-chan struct{}, visit func() error, failed func(error)) (wait func()) {
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				pause(think / 2)
				if err := visit(); err != nil {
					failed(err)
				}
			}
		})
	}
	return all.Wait
}

// befall kills what is called so, and starts it again.
func (d *deployment) befall(victim string) {
	d.t.Helper()
	if victim == "broker" {
		d.broker.Kill()
		pause(rand.N(time.Second))
		require.NoError(d.t, d.broker.Restart())
		return
	}
	i := rand.IntN(perService)
	d.node(victim, i).end(syscall.SIGKILL)
	pause(rand.N(time.Second))
	d.start(victim, i)
}

// live has customers come while one after the other is killed, in rounds, for so long.
func (d *deployment) live(length time.Duration) {
	d.t.Helper()
	victims := []string{loyaltyService, shopService}
	stop := make(chan struct{})
	wait := d.serve(stop)
	halt := sync.OnceFunc(func() { close(stop); wait() })
	d.t.Cleanup(halt)
	if !d.broker.Running() {
		pause(time.Second)
		require.Equal(d.t, 200, d.node(loyaltyService, 0).get("/readyz").status, "while the broker is away")
		require.NoError(d.t, d.broker.Restart())
		victims = append(victims, "broker")
	}
	d.refuses()
	kills := 0
	for over := time.Now().Add(length); kills == 0 || time.Now().Before(over); {
		rand.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		for _, victim := range victims {
			pause(rand.N(time.Second))
			d.befall(victim)
			kills++
		}
	}
	halt()
	d.t.Logf("%d kills", kills)
}

// refuses gives both programs a wrong password: they say so in one line, without the password, and end with 1.
func (d *deployment) refuses() {
	d.t.Helper()
	wrong := strings.Replace(d.url, ":secret@", ":tiger@", 1)
	for flag, service := range map[string]string{"--relay": shopService, "--inbox": loyaltyService} {
		dsn := "sqlite://" + filepath.Join(d.t.TempDir(), "x.db")
		code, stdout, stderr := program(d.t, nil, service, "--addr", "127.0.0.1:0", "--dsn", dsn, flag, wrong)
		require.Equal(d.t, 1, code, stderr)
		require.Empty(d.t, stdout)
		require.Equal(d.t, 1, strings.Count(stderr, "\n"), "one line: %s", stderr)
		require.NotContains(d.t, stderr, "tiger", "the password")
		require.Contains(d.t, stderr, "refuses")
	}
}

// judge waits until everything has landed and come to its end, and accounts for every stamp.
func (d *deployment) judge() {
	d.t.Helper()
	require.Empty(d.t, d.failed)
	want := map[string]any{"landed": float64(d.events), "open": 0.0, "dead": 0.0}
	var got map[string]any
	for deadline := time.Now().Add(patient); ; pause(beat) {
		r, err := tryWith(hurried, d.node(loyaltyService, 0).base, http.MethodGet, "/stats", "")
		if got = r.body; err == nil && got["landed"] == want["landed"] && got["open"] == 0.0 {
			break
		}
		require.True(d.t, time.Now().Before(deadline), "not all has landed: %v, not %v (%v)", got, want, err)
	}
	require.Zero(d.t, got["dead"])
	d.t.Logf("%d users, %d events, %v messages came twice", len(d.wanted), d.events, got["duplicates"])
	d.node(shopService, 0).quiet()
	for user, stamps := range d.wanted {
		for i := range perService {
			require.InDelta(d.t, stamps, d.node(loyaltyService, i).get("/users/"+user+"/stamps").at("stamps"), 0, user)
		}
	}
	for service, nodes := range d.nodes {
		for _, n := range nodes {
			require.Equal(d.t, 0, n.end(syscall.SIGTERM), "%s: SIGTERM drains and exits 0", service)
		}
	}
	code, stdout, stderr := program(d.t, nil, "check", "--dsn", d.dsn[shopService], "--quiet")
	require.Equal(d.t, 0, code, "%s%s", stdout, stderr)
	found, err := invariant.Check(d.t.Context(), testdb.OpenDSN(d.t, d.dsn[loyaltyService]), invariant.Config{Quiet: true})
	require.NoError(d.t, err)
	require.Empty(d.t, found)
}

// TestTwoServicesUnderKills has customers buy, pay and refund while an instance of the monolith, one of the loyalty service or the broker
// is killed, one after the other. In the end every stamp is accounted for. It goes on for BLUECONE_TEST_SERVICES; without
// that each is killed once, but for RabbitMQ and Kafka, which take long to start, and RocketMQ takes no part.
func TestTwoServicesUnderKills(t *testing.T) {
	t.Parallel()
	var length time.Duration
	if text := os.Getenv("BLUECONE_TEST_SERVICES"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		require.NoError(t, err, "BLUECONE_TEST_SERVICES must be a duration such as 10m")
	}
	brokers := map[string]string{"nats": "sqlite", "redis": "postgres", "rabbitmq": "mysql", "kafka": "mysql9"}
	if length > 0 {
		brokers["rocketmq"] = "postgres"
	}
	for broker, dialect := range brokers {
		if only := os.Getenv("BLUECONE_TEST_SERVICES_BROKER"); only != "" && only != broker {
			continue
		}
		t.Run(broker+" and "+dialect, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t, broker, dialect, length > 0 || broker == "nats" || broker == "redis")
			d.live(length)
			d.judge()
		})
	}
}
