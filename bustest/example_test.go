package bustest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/uptrace/bun"
	_ "modernc.org/sqlite" // the driver of bustest.NewDB

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/outbox"
)

// exampleT stands for the *testing.T of your test, which an example does not have.
type exampleT struct {
	testing.TB
	dir string
	end []func()
}

func (*exampleT) Helper()                           {}
func (*exampleT) Context() context.Context          { return context.Background() }
func (t *exampleT) Cleanup(fn func())               { t.end = append(t.end, fn) }
func (*exampleT) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (*exampleT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (*exampleT) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (t *exampleT) TempDir() string {
	if t.dir == "" {
		var err error
		if t.dir, err = os.MkdirTemp("", "example"); err != nil {
			panic(err)
		}
	}
	dir := filepath.Join(t.dir, fmt.Sprint(len(t.end)))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		panic(err)
	}
	return dir
}

// Done does what the end of a test does.
func (t *exampleT) Done() {
	for _, fn := range slices.Backward(t.end) {
		fn()
	}
	_ = os.RemoveAll(t.dir)
}

// A test of a module: what it saves, and what a consumer makes of it. t is the test's *testing.T.
func Example() {
	t := &exampleT{}
	defer t.Done()

	h := bustest.New(t, bustest.NewDB(t)) // the real engine, on a database of its own
	bus.On(h.Bus.Consumer("Tickets", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[seatTaken]) error {
		if m.Attempt == 1 {
			fmt.Println("ticket for seat", m.Payload.Seat)
		}
		return nil
	})
	h.Break(bustest.FailBeforeCommit) // and the world behaves badly
	bustest.Deliver(h, seatTaken{Seat: "12A"})
	fmt.Println(h.Drain())
	// Output:
	// ticket for seat 12A
	// ticket for seat 12A
	// map[SUCCESS:1]
}

// Each test has a database of its own, which is gone when the test ends.
func ExampleNewDB() {
	t := &exampleT{}
	defer t.Done()

	one, other := bustest.New(t, bustest.NewDB(t)), bustest.New(t, bustest.NewDB(t))
	bustest.Deliver(one, seatTaken{Seat: "12A"})
	fmt.Println(len(bustest.AllSaved[seatTaken](one)), len(bustest.AllSaved[seatTaken](other)))
	// Output: 1 0
}

// A reminder is due tomorrow: let a day pass.
func ExampleHarness_Advance() {
	t := &exampleT{}
	defer t.Done()

	h := bustest.New(t, bustest.NewDB(t), bustest.DeliverOnce())
	bus.OnExternal(h.Bus.Consumer("Reminder", bus.ConsumerConfig{}), func(_ context.Context, m bus.Message[seatTaken]) error {
		fmt.Println("remember seat", m.Payload.Seat)
		return nil
	})
	bustest.Deliver(h, outbox.With(seatTaken{Seat: "12A"}, outbox.DeliverAt(time.Now().Add(24*time.Hour))))
	fmt.Println("today:", h.Drain())
	h.Advance(24 * time.Hour)
	fmt.Println("tomorrow:", h.Drain())
	// Output:
	// today: map[]
	// remember seat 12A
	// tomorrow: map[SUCCESS:1]
}

// What was saved, with everything that is stored about it.
func ExampleRequireSaved() {
	t := &exampleT{}
	defer t.Done()

	h := bustest.New(t, bustest.NewDB(t))
	bustest.Deliver(h, outbox.With(seatTaken{Seat: "12A"}, outbox.Tenant(7, 3), outbox.Meta("source", "web")))
	taken := bustest.RequireSaved[seatTaken](h)
	fmt.Println(taken.Payload.Seat, taken.AggregateType, taken.TenantID, taken.StoreID, taken.Metadata["source"])
	// Output: 12A SEAT 7 3 web
}

// What must not have been saved: of a transaction that was rolled back there is no event.
func ExampleRequireNotSaved() {
	t := &exampleT{}
	defer t.Done()

	db := bustest.NewDB(t)
	h := bustest.New(t, db)
	err := db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		if err := h.Outbox.Save(ctx, tx, seatTaken{Seat: "12A"}); err != nil {
			return err
		}
		return fmt.Errorf("the payment was refused")
	})
	bustest.RequireNotSaved[seatTaken](h)
	fmt.Println("not saved:", err)
	// Output: not saved: the payment was refused
}
