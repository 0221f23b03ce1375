package browser_test

import (
	"log/slog"
	"os"
	"testing"
)

// TestMain silences the shop, which logs every movement of money.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}
