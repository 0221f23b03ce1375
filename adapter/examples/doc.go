// Package examples shows squirrel, and what sqlc's code takes, with bluecone: neither needs an adapter. Its tests are the code of
// docs/guides/sqlc-and-squirrel.md.
package examples
