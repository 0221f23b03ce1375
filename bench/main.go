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
	"strconv"
	"strings"
	"time"
)

// options are what the command line says.
type options struct {
	workloads, dialects, only []string
	runs, events              int
	rates                     []int
	history                   []int // SENT rows of W4
	crowds                    []int // instances of W5
	length                    time.Duration
	profile, write            string
	verbose                   bool
}

func main() {
	if dsn := os.Getenv(instanceEnv); dsn != "" {
		exit(instance(dsn))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	exit(run(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(ctx context.Context) error {
	o, err := parse()
	if err != nil {
		return err
	}
	var rs results
	for _, d := range o.dialects {
		if err := runDialect(ctx, o, d, &rs); err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
	}
	return report(o, &rs)
}

var workloads = []struct { //nolint:gochecknoglobals // a constant table
	name string
	run  func(context.Context, options, *machine, *results) error
}{{"W1", drains}, {"W2", latencies}, {"W3", produces}, {"W4", histories}, {"W5", crowds}, {"W6", isolations}}

func parse() (options, error) {
	list := func(s, sep string) []string {
		return slices.DeleteFunc(strings.Split(s, sep), func(p string) bool { return p == "" })
	}
	wanted := flag.String("w", "W1,W2,W3,W4,W5,W6", "workloads")
	dialects := flag.String("db", "mysql,postgres,sqlite", "databases")
	only := flag.String("only", "", "only contenders whose name contains one of these; separated by semicolons")
	quick := flag.Bool("quick", false, "fewer events, one run, less history")
	history := flag.String("history", "10000,200000,2000000", "numbers of SENT rows of W4, ascending")
	o := options{rates: []int{200, 1500}, crowds: crowdSizes}
	flag.IntVar(&o.runs, "runs", 3, "runs of each contender; the table shows the median")
	flag.IntVar(&o.events, "events", 100_000, "events of a drain of W1; W5 and W6 drain half of them, W4 three tenths")
	flag.DurationVar(&o.length, "length", 12*time.Second, "length of each W2 and, half of it, W3")
	flag.StringVar(&o.profile, "profile", "", "write a CPU profile of bluecone's drains to this file")
	flag.StringVar(&o.write, "write", "", "write the tables into this Markdown file, and the plot beside it")
	flag.BoolVar(&o.verbose, "v", false, "print processor time")
	flag.Parse()
	if *quick {
		o.runs, o.events, o.length, o.rates, o.crowds, *history = 1, 8_000, time.Second, []int{200}, []int{1, 4}, "5000,25000"
	}
	for _, n := range list(*history, ",") {
		sent, err := strconv.Atoi(n)
		if err != nil || sent < 1 {
			return o, fmt.Errorf("-history: %q is not a number of rows", n)
		}
		o.history = append(o.history, sent)
	}
	o.workloads, o.dialects, o.only = list(*wanted, ","), list(*dialects, ","), list(*only, ";")
	for _, w := range o.workloads {
		if !slices.ContainsFunc(workloads, func(k struct {
			name string
			run  func(context.Context, options, *machine, *results) error
		},
		) bool {
			return k.name == w
		}) {
			return o, fmt.Errorf("the workload %q is unknown: W1 to W6", w)
		}
	}
	return o, nil
}

func runDialect(ctx context.Context, o options, dialect string, rs *results) error {
	m, err := startMachine(dialect)
	if err != nil {
		return err
	}
	defer m.stop()
	for _, w := range workloads {
		if slices.Contains(o.workloads, w.name) {
			if err := w.run(ctx, o, m, rs); err != nil {
				return err
			}
		}
	}
	return nil
}

// wanted reports whether the command line asks for a contender.
func (o options) wanted(name string) bool {
	return len(o.only) == 0 || slices.ContainsFunc(o.only, func(s string) bool { return strings.Contains(name, s) })
}
