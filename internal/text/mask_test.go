package text_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/text"
)

func TestMaskLeavesWhatMessagesHaveInCommon(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		`order 17: balance 300 is less than 1,250.50`:                      `order #: balance # is less than #`,
		`user "anna@example.org" not found`:                                `user "…" not found`,
		"dial tcp 10.0.0.7:5432: connect: connection refused":              "dial tcp #: connect: connection refused",
		"event 01932d5e-7a3c-7def-8123-0123456789ab is gone\n\tat line 12": "event # is gone",
		"at 0xc0001234 of deadbeef01":                                      "at # of #",
		"it's   what it is":                                                "it's what it is",
		"":                                                                 "",
	} {
		require.Equal(t, want, text.Mask(message))
	}
}
