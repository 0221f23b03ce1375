package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/cmd/bluecone/cli"
	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// TestMain lets the test binary be the program bluecone, or a program of somebody's own that has
// the commands in it. So every test here drives real processes.
func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "bluecone":
		main()
	case "shop":
		os.Exit(cli.Execute(context.Background(), shop()))
	}
	testdb.Main(m)
}

const childEnv = "BLUECONE_TEST_CHILD"

// reply is what a process answered.
type reply struct {
	code        int
	out, errors string
}

// program runs a program to its end.
func program(t *testing.T, name string, env []string, args ...string) reply {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(append(os.Environ(), childEnv+"="+name, "BLUECONE_DSN="), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the exit status says it
	return reply{code: cmd.ProcessState.ExitCode(), out: stdout.String(), errors: stderr.String()}
}

// deployment is a database with a shop on it.
type deployment struct {
	t   *testing.T
	dsn string
	db  *bun.DB
}

func newDeployment(t *testing.T, dialect string) *deployment {
	t.Helper()
	d := &deployment{t: t, dsn: testdb.DSN(t, dialect)}
	d.db = testdb.OpenDSN(t, d.dsn)
	require.NoError(t, migrations.Up(t.Context(), d.db))
	return d
}

func each(t *testing.T, fn func(t *testing.T, d *deployment)) {
	t.Helper()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			fn(t, newDeployment(t, dialect))
		})
	}
}

// bluecone runs the program on the deployment; an argument may hold several words.
func (d *deployment) bluecone(args ...string) reply {
	d.t.Helper()
	return program(d.t, "bluecone", []string{"BLUECONE_DSN=" + d.dsn}, args...)
}

func (d *deployment) shop(args ...string) reply {
	d.t.Helper()
	return program(d.t, "shop", []string{"SHOP_DSN=" + d.dsn}, append([]string{"ops"}, args...)...)
}

// ok demands that a command succeeds.
func (d *deployment) ok(args ...string) string {
	d.t.Helper()
	r := d.bluecone(args...)
	require.Zero(d.t, r.code, "%v: %s%s", args, r.out, r.errors)
	return r.out
}

// paid is the event of the shop.
type paid struct {
	OrderID string `json:"orderId"`
	Cents   int64  `json:"cents"`
	Note    string `json:"note,omitempty"`
}

func (paid) EventType() string              { return "order.paid" }
func (e paid) Aggregate() (kind, id string) { return "ORDER", e.OrderID }
func (e paid) IdempotencyKey() string       { return "paid:" + e.OrderID }
func (d *deployment) save(events ...bus.Event) {
	d.t.Helper()
	ob, err := outbox.New(d.db, outbox.Config{Instance: "shop-1", Logger: silent()})
	require.NoError(d.t, err)
	require.NoError(d.t, d.db.RunInTx(d.t.Context(), nil, func(ctx context.Context, tx bun.Tx) error { return ob.Save(ctx, tx, events...) }))
}

// work lets the shop's two consumers do what is due. Points fails as it is told.
func (d *deployment) work(points error) {
	d.t.Helper()
	ob, err := outbox.New(d.db, outbox.Config{MaxRetryCount: 1, Instance: "shop-1", Logger: silent()})
	require.NoError(d.t, err)
	b := bus.New(d.db, bus.Config{Logger: silent()})
	bus.On(b.Consumer("Points", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[paid]) error { return points })
	bus.On(b.Consumer("Wallet", bus.ConsumerConfig{Replayable: true}), func(context.Context, bun.Tx, bus.Message[paid]) error { return nil })
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	require.NoError(d.t, err)
	for range 20 {
		r, err := pub.RunOnce(d.t.Context())
		require.NoError(d.t, err)
		if r == (outbox.Report{}) {
			return
		}
	}
}

func silent() *slog.Logger { return slog.New(slog.DiscardHandler) }

// shop is a program of somebody's own with the commands below "ops".
func shop() *cobra.Command {
	root := &cobra.Command{Use: "shop", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(cli.Command(cli.Config{Name: "ops", Open: func(ctx context.Context) (cli.Deployment, error) {
		slog.SetDefault(silent())
		db, err := dburl.OpenExisting(ctx, os.Getenv("SHOP_DSN"))
		if err != nil {
			return cli.Deployment{}, errors.Join(cli.ErrUnreachable, err)
		}
		ob, err := outbox.New(db, outbox.Config{})
		if err != nil {
			return cli.Deployment{}, err
		}
		job, err := consistency.New(db, consistency.Config{}, consistency.BuiltIn()...)
		if err != nil {
			return cli.Deployment{}, err
		}
		o, err := ops.New(db, ob, ops.Config{
			Jobs: []ops.Job{job}, Publishable: []bus.Event{paid{}},
			Sections: []ops.Section{func(_ context.Context, key string) (*ops.Facts, error) {
				return &ops.Facts{Title: "Order", Rows: []ops.Fact{{Name: "total of " + key, Value: "5 €"}}}, nil
			}},
		})
		return cli.Deployment{Ops: o, DB: db}, err
	}}))
	return root
}

// lines splits text into its lines.
func lines(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }
