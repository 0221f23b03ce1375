package ledger

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/bluecone-go/bluecone/internal/spi"
)

// consumeToken is a lease as its caller gets it. It names the caller, so that another one's is told apart, and holds the
// lease's random owner, so that none can be made up.
func consumeToken(c Caller, l spi.RemoteLease) string {
	text := fmt.Sprintf("%d.%d.%s.%s", l.Row, l.Version, mark(c), l.Owner)
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

// mark stands for a caller.
func mark(c Caller) string {
	sum := sha256.Sum256([]byte(c.Name))
	return hex.EncodeToString(sum[:8])
}

var (
	errNoSuchToken = connect.NewError(connect.CodeNotFound, errors.New("consumeToken: there is no such token"))
	errNotYours    = connect.NewError(connect.CodePermissionDenied, errors.New("consumeToken: the token belongs to another caller"))
)

// leaseOf is the lease of a token of the caller's.
func leaseOf(c Caller, token string) (l spi.RemoteLease, err error) {
	if token == "" {
		return l, connect.NewError(connect.CodeInvalidArgument, errors.New("consumeToken is missing"))
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return l, errNoSuchToken
	}
	parts := strings.SplitN(string(text), ".", 4)
	if len(parts) != 4 {
		return l, errNoSuchToken
	}
	var errRow, errVersion error
	l.Row, errRow = strconv.ParseInt(parts[0], 10, 64)
	l.Version, errVersion = strconv.ParseInt(parts[1], 10, 64)
	l.Owner = parts[3]
	switch {
	case errRow != nil || errVersion != nil || !utf8.ValidString(l.Owner) || strings.ContainsRune(l.Owner, 0):
		return l, errNoSuchToken
	case parts[2] != mark(c):
		return l, errNotYours
	}
	return l, nil
}
