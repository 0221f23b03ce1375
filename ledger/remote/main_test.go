package remote_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) {
	if os.Getenv(childPoint) == "" {
		testdb.Main(m)
		return
	}
	if err := live(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
