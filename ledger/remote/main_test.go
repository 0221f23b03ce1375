package remote_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) {
	role := os.Getenv(childRole)
	if os.Getenv(childPoint) == "" && role == "" {
		testdb.Main(m)
		return
	}
	live := live
	if role != "" {
		live = func(context.Context) error { return play(role) }
	}
	if err := live(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
