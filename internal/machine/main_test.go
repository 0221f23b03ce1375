package machine

import (
	"flag"
	"testing"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "8", "rapid.steps": "40", "rapid.seed": "1"} { // the command line still decides
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	testdb.Main(m)
}
