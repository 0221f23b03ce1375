package alert

import (
	"crypto/hmac"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

var (
	// ErrSignature means that a message was not signed with this secret, or was changed since.
	ErrSignature = errors.New("alert: the message is not signed with this secret")
	// ErrStale means that a message was signed, and more than [WebhookTolerance] from the receiver's clock.
	ErrStale = errors.New("alert: the message was signed at another time")
)

// VerifyWebhook is for the receiver of messages that a [Webhook] posts in the format [JSON]: it says whether a message was
// signed with the secret, within [WebhookTolerance] of this machine's clock. The body must be the bytes as they arrived.
// A message that is sent again is signed again: recognise it by Notice.ID in the body, and remember that for twice the
// tolerance, or somebody who has overheard a message can send it once more.
func VerifyWebhook(secret string, header http.Header, body []byte) error {
	return verify(secret, header, body, time.Now())
}

func verify(secret string, header http.Header, body []byte, now time.Time) error {
	if secret == "" {
		return errors.New("alert: VerifyWebhook needs the secret of WebhookConfig.Secret; without one anybody can sign")
	}
	stamps, signatures := header.Values(TimestampHeader), header.Values(SignatureHeader)
	if len(stamps) != 1 || len(signatures) != 1 {
		return fmt.Errorf("%w: it needs the headers %s and %s once each", ErrSignature, TimestampHeader, SignatureHeader)
	}
	if !hmac.Equal([]byte(signatures[0]), []byte(signature(secret, stamps[0], body))) {
		return ErrSignature
	}
	signed, err := strconv.ParseInt(stamps[0], 10, 64)
	if err != nil {
		return fmt.Errorf("%w: %s is no number of seconds", ErrSignature, TimestampHeader)
	}
	tolerance := int64(WebhookTolerance / time.Second)
	if signed < now.Unix()-tolerance || signed > now.Unix()+tolerance {
		return fmt.Errorf("%w, more than %v from this clock: check NTP on both machines", ErrStale, WebhookTolerance)
	}
	return nil
}

// signature is the value of the header that signs a message.
func signature(secret, stamp string, body []byte) string {
	return "v1=" + hex.EncodeToString(mac([]byte(secret), append([]byte(stamp+"."), body...)))
}
