package order

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/dburl"
)

var errAnswered = errors.New("answered before")

// once runs fn in a transaction, and under an idempotency key only the first time: later
// calls with the key get the first answer, in whichever instance and after whichever crash.
// The key's row is written in fn's own transaction; a call at the same time waits for it.
func once[T any](ctx context.Context, s *Service, key string, request any,
	fn func(ctx context.Context, tx bun.Tx) (T, error),
) (answer T, err error) {
	if key != "" {
		if err := plain("Idempotency-Key", key, 150); err != nil {
			return answer, err
		}
	}
	body, err := json.Marshal(request)
	if err != nil {
		return answer, err
	}
	sum := sha256.Sum256(body)
	digest := hex.EncodeToString(sum[:])
	err = s.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		if key == "" {
			answer, err = fn(ctx, tx)
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO demo_idempotency (idem_key, request, response) VALUES (?, ?, '')", key,
			digest); err != nil {
			if dburl.IsDuplicate(err) {
				return errAnswered
			}
			return fmt.Errorf("idempotency key: %w", err)
		}
		if answer, err = fn(ctx, tx); err != nil {
			return err
		}
		response, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE demo_idempotency SET response = ? WHERE idem_key = ?", string(response), key)
		return err
	})
	if !errors.Is(err, errAnswered) {
		return answer, err
	}
	var known, response string
	if err := s.db.QueryRowContext(ctx, "SELECT request, response FROM demo_idempotency WHERE idem_key = ?", key).
		Scan(&known, &response); err != nil {
		return answer, fmt.Errorf("idempotency key: %w", err)
	}
	if known != digest {
		return answer, refuse(Conflict, "IDEMPOTENCY_KEY_REUSED", "the idempotency key was used for another request")
	}
	return answer, json.Unmarshal([]byte(response), &answer)
}

// inTx runs fn in a transaction, again if the database asks for it.
func (s *Service) inTx(ctx context.Context, fn func(ctx context.Context, tx bun.Tx) error) error {
	for try := 1; ; try++ {
		err := s.db.RunInTx(ctx, s.d.ReadCommitted(), fn)
		if err == nil || !dburl.IsConflict(err) || try == 5 || ctx.Err() != nil {
			return err
		}
	}
}
