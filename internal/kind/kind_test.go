package kind_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/kind"
)

func TestOf(t *testing.T) {
	t.Parallel()
	bad := errors.New("bad")
	require.NoError(t, kind.Of(nil, bad))
	err := fmt.Errorf("read: %w", kind.Of(fmt.Errorf("line 3: %w", io.ErrUnexpectedEOF), bad))
	require.EqualError(t, err, "read: line 3: unexpected EOF")
	require.ErrorIs(t, err, bad)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NotErrorIs(t, err, errors.New("bad"), "another one")
}
