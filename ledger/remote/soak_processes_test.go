package remote_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/process"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/ledger/remote"
	"github.com/bluecone-go/bluecone/outbox"
)

// What tells a process of the soak who it is.
const (
	childRole = "BLUECONE_REMOTE_ROLE"
	childAddr = "BLUECONE_REMOTE_ADDR"
	childName = "BLUECONE_REMOTE_NAME"

	roleLedger   = "ledger"
	roleConsumer = "consumer"
	roleProducer = "producer"
)

const soakLease = 2 * time.Second

// child is a process that can be started again.
type child struct {
	*process.Process

	env []string
	log string
}

func startChild(t *testing.T, name string, env map[string]string) *child {
	t.Helper()
	c := &child{env: os.Environ(), log: filepath.Join(t.TempDir(), strings.ReplaceAll(name, " ", "-")+".log")}
	for k, v := range env {
		c.env = append(c.env, k+"="+v)
	}
	c.start(t)
	t.Cleanup(func() { c.Stop() })
	return c
}

func (c *child) start(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), os.Args[0])
	cmd.Env = c.env
	var err error
	c.Process, err = process.Start(cmd, syscall.SIGTERM, c.log)
	require.NoError(t, err)
}

// play is the life of a process of the soak.
func play(role string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	db, err := testdb.Connect(os.Getenv(childDSN))
	if err != nil {
		return err
	}
	defer db.Close()
	switch role {
	case roleLedger:
		return playLedger(ctx, db)
	case roleConsumer:
		return playConsumer(ctx, db)
	default:
		return playProducer(ctx, db)
	}
}

// playLedger is what "bluecone ledger serve" does.
func playLedger(ctx context.Context, db *bun.DB) error {
	ob, err := outbox.New(db, outbox.Config{})
	if err != nil {
		return err
	}
	pub, err := outbox.NewPublisher(ob, bus.New(db, bus.Config{}), outbox.PublisherConfig{Lease: soakLease, Poll: 100 * time.Millisecond})
	if err != nil {
		return err
	}
	s, err := ledger.New(db, ob, ledger.Config{Lease: soakLease, Authorizer: ledger.Anybody})
	if err != nil {
		return err
	}
	return serveUntil(ctx, s, pub.Run, s.Run)
}

// serveUntil answers calls at the process's address, and runs what it is given, until ctx ends.
func serveUntil(ctx context.Context, h http.Handler, runs ...func(context.Context) error) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", os.Getenv(childAddr))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1+len(runs))
	go func() { ended <- server.Serve(l) }()
	for _, run := range runs {
		go func() { ended <- run(ctx) }()
	}
	<-ctx.Done()
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err = server.Shutdown(limit)
	for range 1 + len(runs) {
		if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func playConsumer(ctx context.Context, db *bun.DB) error {
	client, err := clientOf(os.Getenv(childLedger), nil)
	if err != nil {
		return err
	}
	b := bus.New(db, bus.Config{})
	c := b.Consumer(os.Getenv(childName), bus.ConsumerConfig{})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
		if m.Attempt == 1 && oneIn(50, m.ID) {
			return errors.New("drawn")
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO effect (event_id, order_id, seq, earlier) "+
			"SELECT ?, ?, ?, COUNT(*) FROM effect WHERE order_id = ?", m.ID, m.Payload.Order, m.Payload.Seq, m.Payload.Order)
		return err
	})
	r, err := remote.Consumer(b, client, remote.Config{Wait: 5 * time.Second, Heartbeat: soakLease / 4, Drain: 5 * time.Second})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

func oneIn(n uint32, id string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // never fails
	return h.Sum32()%n == 0
}

// clerks is how many sales are made at a time, and ofOneOrder how many an order has at most.
const clerks, ofOneOrder = 8, 20

// playProducer makes sales until it is told to close, and answers what the ledger asks. A sale is what its transaction has committed:
// whoever is killed after that leaves the rest to the ledger. No life adds to the orders of an earlier one.
func playProducer(ctx context.Context, db *bun.DB) error {
	client, err := clientOf(os.Getenv(childLedger), nil)
	if err != nil {
		return err
	}
	p, err := ledger.NewProducer(ctx, db, client, ledger.ProducerConfig{CheckURL: "http://" + os.Getenv(childAddr) + "/check", TTL: soakLease})
	if err != nil {
		return err
	}
	open, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	for range clerks {
		all.Go(func() {
			for open.Err() == nil {
				sell(open, db, p, fmt.Sprintf("order-%x", rand.Uint64()))
			}
		})
	}
	mux := http.NewServeMux()
	mux.Handle("/check", p)
	mux.HandleFunc("POST /close", func(http.ResponseWriter, *http.Request) {
		cancel()
		all.Wait()
	})
	return serveUntil(ctx, mux, func(ctx context.Context) error {
		<-ctx.Done()
		all.Wait()
		return nil
	})
}

// sell makes the sales of one order, one after the other. The next one follows when the ledger knows of the one before.
func sell(ctx context.Context, db *bun.DB, p *ledger.Producer, order string) {
	for seq := 0; seq < ofOneOrder && ctx.Err() == nil; {
		event, err := p.Reserve(ctx, paid{order, seq})
		if err != nil {
			continue // whether it is reserved or not: nothing is committed
		}
		_ = db.RunInTx(context.WithoutCancel(ctx), nil, func(ctx context.Context, tx bun.Tx) error { // Settle looks
			if err := ledger.Prepare(ctx, tx, event); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "INSERT INTO sale (event_id, order_id, seq) VALUES (?, ?, ?)", event.EventID, order, seq); err != nil {
				return err
			}
			if rand.IntN(5) == 0 {
				return errors.New("the customer changes their mind")
			}
			return nil
		})
		for {
			state, err := p.Settle(context.WithoutCancel(ctx), event)
			if err == nil {
				if state == "CONFIRMED" {
					seq++
				}
				break
			}
			pause(50 * time.Millisecond)
		}
	}
}
