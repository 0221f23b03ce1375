// Package examples shows sqlc and squirrel with bluecone: neither needs an adapter. Its tests are the code of
// docs/guides/sqlc-and-squirrel.md.
package examples

//go:generate go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate
