// Package needs is for tests that need what may not be on this machine: a database, a broker, a tool. What is missing skips them,
// unless BLUECONE_TEST_REQUIRE (a list such as mysql,redis) names it: then they fail.
package needs

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Unavailable skips the test, or fails it if BLUECONE_TEST_REQUIRE names what is missing. help says how to get it.
func Unavailable(t testing.TB, what, help string, err error) {
	t.Helper()
	msg := fmt.Sprintf("no %s here: %v (%s)", what, err, help)
	if Listed(os.Getenv("BLUECONE_TEST_REQUIRE"), what) {
		t.Fatal(msg)
	}
	t.Skip(msg)
}

// Listed reports whether a comma-separated list names what is asked for.
func Listed(list, what string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(s string) bool { return strings.TrimSpace(s) == what })
}

// Patience is how long a test waits for what must come: long enough for a slow machine with a busy disk, unless
// BLUECONE_TEST_PATIENCE says otherwise.
func Patience() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("BLUECONE_TEST_PATIENCE")); err == nil {
		return d
	}
	return 5 * time.Minute
}

// NeverEnd tells [Main] of the goroutines of a library that never end, by the functions that they are in.
func NeverEnd(functions ...string) {
	for _, function := range functions {
		neverEnd = append(neverEnd, goleak.IgnoreTopFunction(function))
	}
}

var neverEnd []goleak.Option //nolint:gochecknoglobals // what Main does not look for

// Main runs the tests of a package, calls stop for what they have started, and fails the package if a goroutine is still there.
// It ends the process: let TestMain do nothing else after it.
func Main(m *testing.M, stop func()) {
	code := m.Run()
	stop()
	if code == 0 {
		if err := goleak.Find(neverEnd...); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left behind:", err)
			code = 1
		}
	}
	os.Exit(code)
}
