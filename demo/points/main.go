// Command points is the module points of demo/bluecone in a process of its own: the same handlers, a database of its own, and the
// ledger of the monolith's database for the events.
//
//	go run ./demo/points --dsn DSN --from DSN --ledger URL --token FILE
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/bluecone-go/bluecone/demo/cli"
	"github.com/bluecone-go/bluecone/demo/points/service"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	return cli.Status("points", service.Run(ctx, os.Args[1:], os.Stdout, os.Stderr), os.Stderr)
}
