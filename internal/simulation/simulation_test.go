package simulation

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// Whatever befalls a deployment: nothing is lost, nothing happens twice, the order is kept, and in
// the end everything is done.
//
//	BLUECONE_SIM_SEEDS=20000 go test ./internal/simulation   # more lives
//	BLUECONE_SIM_FIRST=2001 go test ./internal/simulation    # others
//	BLUECONE_SIM_SEED=4711 go test ./internal/simulation     # this one, many times, until it goes wrong again
func TestSimulatedLivesKeepEveryPromise(t *testing.T) {
	t.Parallel()
	seeds, one := setting(t, "BLUECONE_SIM_SEEDS", defaultSeeds), setting(t, "BLUECONE_SIM_SEED", 0)
	if testing.Short() {
		seeds = min(seeds, 200)
	}
	var next atomic.Uint64
	first := setting(t, "BLUECONE_SIM_FIRST", 1)
	next.Store(first - 1)
	for worker := range 2 {
		t.Run(fmt.Sprint("worker", worker), func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			for {
				seed := next.Add(1)
				if seed >= first+seeds || t.Failed() {
					return
				}
				if one > 0 {
					seed = one
				}
				live(t, s, seed)
			}
		})
	}
}

// setting is a number from the environment.
func setting(t *testing.T, name string, def uint64) uint64 {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return def
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
