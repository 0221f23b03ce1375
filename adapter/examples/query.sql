-- name: PayOrder :exec
INSERT INTO orders (id, cents) VALUES (?, ?);

-- name: AddPoints :exec
UPDATE accounts SET points = points + sqlc.arg(points) WHERE id = sqlc.arg(id);

-- name: Points :one
SELECT points FROM accounts WHERE id = ?;
