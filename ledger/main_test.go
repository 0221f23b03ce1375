package ledger_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(idleCallers) != "":
		end(liveAsCallers(context.Background(), os.Args[1], os.Args[2]))
	case os.Getenv(childPoint) != "":
		end(liveAsProducer(context.Background()))
	}
	// The command line still decides.
	checks := "20"
	if watched {
		checks = "4"
	}
	for name, value := range map[string]string{"rapid.checks": checks, "rapid.steps": "40", "rapid.seed": "1"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	testdb.Main(m)
}

// end ends a process that a test has started.
func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
