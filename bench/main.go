// Command bench measures bluecone beside its peers and beside the hand-written limit, in one run
// on private servers with durable settings, and prints ratios.
//
//	go run . -w W1,W2 -db mysql,postgres,sqlite -runs 3
//	go run . -quick
//
// Absolute figures are worth little on a shared machine; runs are interleaved, so that ratios are.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

// options are what the command line says.
type options struct {
	workloads, dialects, only []string
	runs, events              int
	rate                      int
	length                    time.Duration
	profile                   string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	o, err := parse()
	if err != nil {
		return err
	}
	for _, d := range o.dialects {
		if err := runDialect(ctx, o, d); err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
	}
	return nil
}

func parse() (options, error) {
	list := func(s string) []string {
		return slices.DeleteFunc(strings.Split(s, ","), func(p string) bool { return p == "" })
	}
	workloads := flag.String("w", "W1,W2,W3", "workloads")
	dialects := flag.String("db", "mysql,postgres,sqlite", "databases")
	only := flag.String("only", "", "only contenders whose name contains one of these")
	quick := flag.Bool("quick", false, "fewer events and one run")
	var o options
	flag.IntVar(&o.runs, "runs", 3, "runs of each contender; the table shows the median")
	flag.IntVar(&o.events, "events", 100_000, "events of a drain")
	flag.IntVar(&o.rate, "rate", 200, "events per second of W2")
	flag.DurationVar(&o.length, "length", 8*time.Second, "length of W2 and, a quarter of it, W3")
	flag.StringVar(&o.profile, "profile", "", "write a CPU profile of bluecone's drains to this file")
	flag.Parse()
	if *quick {
		o.runs, o.events, o.length = 1, 20_000, 3*time.Second
	}
	o.workloads, o.dialects, o.only = list(*workloads), list(*dialects), list(*only)
	for _, w := range o.workloads {
		if !slices.Contains([]string{"W1", "W2", "W3"}, w) {
			return o, fmt.Errorf("the workload %q is unknown: W1, W2 or W3", w)
		}
	}
	return o, nil
}

func runDialect(ctx context.Context, o options, dialect string) error {
	m, err := startMachine(dialect)
	if err != nil {
		return err
	}
	defer m.stop()
	if slices.Contains(o.workloads, "W1") {
		if err := drains(ctx, o, m); err != nil {
			return err
		}
	}
	if slices.Contains(o.workloads, "W2") {
		if err := latencies(ctx, o, m); err != nil {
			return err
		}
	}
	if slices.Contains(o.workloads, "W3") {
		return produces(ctx, o, m)
	}
	return nil
}

// wanted reports whether the command line asks for a contender.
func (o options) wanted(name string) bool {
	return len(o.only) == 0 || slices.ContainsFunc(o.only, func(s string) bool { return strings.Contains(name, s) })
}
