package remote_test

import (
	"flag"
	"testing"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "15") // each is a whole life of a deployment; -rapid.checks on the command line asks for more
	testdb.Main(m)
}
