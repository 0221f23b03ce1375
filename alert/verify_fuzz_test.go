package alert

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever arrives, it is taken only with the signature of its own secret, time and body, and only in time.
func FuzzVerifyWebhook(f *testing.F) {
	now := time.Unix(1_800_000_000, 0)
	for _, stamp := range []string{
		"1800000000", "1799999700", "1799999699", "1800000301", "-9223372036854775808", "9223372036854775807",
		"9223372036854775808", "", "+1800000000", "1.8e9", "１",
	} {
		f.Add("s3cret", stamp, []byte(`{"id":"1"}`), "", true, byte(0))
		f.Add("s3cret", stamp, []byte(`{"id":"1"}`), "v1=00", false, byte(7))
	}
	f.Add("", "1800000000", []byte{}, "", true, byte(0))
	f.Add("a", "1800000000", []byte("x"), "", true, byte(3))
	f.Fuzz(func(t *testing.T, secret, stamp string, body []byte, sent string, signs bool, flip byte) {
		h := hmac.New(sha256.New, []byte(secret))
		_, _ = h.Write([]byte(stamp + "." + string(body)))
		right := "v1=" + hex.EncodeToString(h.Sum(nil))
		if signs {
			sent = right
		}
		header := http.Header{}
		header.Set(TimestampHeader, stamp)
		header.Set(SignatureHeader, sent)
		err := verify(secret, header, body, now)
		seconds, unread := strconv.ParseInt(stamp, 10, 64)
		inTime := unread == nil && seconds >= 1_799_999_700 && seconds <= 1_800_000_300
		require.Equal(t, secret != "" && sent == right && inTime, err == nil, "%v", err)
		if secret != "" && sent == right && unread == nil && !inTime {
			require.ErrorIs(t, err, ErrStale)
		}
		header.Set(SignatureHeader, right)
		require.Error(t, verify(secret, header, append(body, flip), now), "a longer body")
		if len(body) > 0 {
			changed := append([]byte(nil), body...)
			changed[int(flip)%len(body)] ^= flip | 1
			require.Error(t, verify(secret, header, changed, now), "another body")
		}
		header.Add(SignatureHeader, sent)
		require.Error(t, verify(secret, header, body, now), "two signatures")
	})
}
