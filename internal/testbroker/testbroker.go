// Package testbroker starts private message brokers for tests, of what scripts/brokers has made available.
//
//	func TestMain(m *testing.M) { testbroker.Main(m) }
//
//	func TestX(t *testing.T) {
//		b := testbroker.Shared(t, "nats") // one for all tests of the package
//		own := testbroker.Start(t, "nats") // for a test that kills it
//	}
//
// A broker listens on free ports of 127.0.0.1 (the proxy of RocketMQ on all addresses), keeps its files in a temporary directory, is
// durable as in production, and lets in one user by password. It ends with the test's process, even if that is killed.
//
// A broker that is not there skips its tests and says why, unless BLUECONE_TEST_REQUIRE (a list such as nats,redis) names it:
// then they fail.
package testbroker

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/bluecone-go/bluecone/internal/needs"
)

// Names lists the brokers.
func Names() []string { return []string{"rabbitmq", "nats", "redis", "kafka", "rocketmq"} }

// Start starts a broker of the test's own, which is stopped when the test ends. If the test has failed, it logs what the broker
// has said.
func Start(t testing.TB, name string) *Broker {
	t.Helper()
	return StartBehind(t, name, "")
}

// StartBehind starts a broker whose clients reach it at another address, host:port. Kafka tells them that one.
func StartBehind(t testing.TB, name, front string) *Broker {
	t.Helper()
	return tended(t, name, launching{front: front})
}

// tended starts a broker, stops it at the end of the test, and shows what it said if the test fails.
func tended(t testing.TB, name string, how launching) *Broker {
	t.Helper()
	b, err := start(t, name, how)
	if err != nil {
		t.Fatalf("testbroker: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("testbroker: %s said:\n%s", name, b.Log())
		}
		b.Stop()
	})
	return b
}

// Shared is a broker that all tests of the package use, none of which may stop it, freeze it or change its password. The first
// starts it; [Main] stops it.
func Shared(t testing.TB, name string) *Broker {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if b, ok := shared.brokers[name]; ok {
		return b
	}
	b, err := start(t, name, launching{})
	if err != nil {
		t.Fatalf("testbroker: %v", err)
	}
	shared.brokers[name] = b
	return b
}

// Main runs the tests of a package, stops the brokers that [Shared] has started, and fails the package if a goroutine is still
// there. It ends the process.
func Main(m *testing.M) { needs.Main(m, stopShared) }

func stopShared() {
	shared.Lock()
	defer shared.Unlock()
	for _, b := range shared.brokers {
		b.Stop()
	}
	clear(shared.brokers)
}

var shared = struct { //nolint:gochecknoglobals // one of each per process
	sync.Mutex
	brokers map[string]*Broker
}{brokers: map[string]*Broker{}}

// start finds a broker and starts it. It tries again with other ports if somebody else was faster to take them.
func start(t testing.TB, name string, how launching) (*Broker, error) {
	t.Helper()
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("%q is unknown: it must be one of %v", name, Names())
	}
	if testing.Short() {
		t.Skip("testbroker: it starts a broker, which -short leaves out")
	}
	home, err := find(name)
	if err != nil {
		needs.Unavailable(t, name, "scripts/brokers "+name, err)
	}
	var failed error
	for range 3 {
		b, err := launch(name, home, how)
		if err == nil {
			return b, nil
		}
		failed = err
	}
	return nil, failed
}

// find looks where scripts/brokers puts brokers.
func find(name string) (home string, err error) {
	dirs := []string{"/var/cache/bluecone/brokers"}
	if dir := os.Getenv("BLUECONE_BROKERS"); dir != "" {
		dirs = []string{dir}
	} else if cache, err := os.UserCacheDir(); err == nil {
		dirs = append(dirs, filepath.Join(cache, "bluecone", "brokers"))
	}
	for _, dir := range dirs {
		home = filepath.Join(dir, name)
		if _, err := os.Stat(filepath.Join(home, "version")); err == nil { //nolint:gosec // the tester says where
			return home, nil
		}
	}
	return "", fmt.Errorf("it is not in %v", dirs)
}

// address is the URL of a broker.
func address(scheme, port string) *url.URL {
	return &url.URL{Scheme: scheme, User: url.UserPassword(user, "secret"), Host: "127.0.0.1:" + port}
}
