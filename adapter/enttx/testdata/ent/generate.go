package ent

// It adds the generator to go.mod; scripts/tidy takes it out again.
//go:generate env GOMAXPROCS=1 go run -mod=mod entgo.io/ent/cmd/ent generate --feature sql/execquery ./schema
