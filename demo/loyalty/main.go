// Command loyalty is a second service beside the monolith of demo/bluecone: it hears of orders by a message broker, and keeps
// stamps in a database of its own.
//
//	go run ./demo/loyalty --dsn DSN --inbox URL
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/bluecone-go/bluecone/demo/cli"
	"github.com/bluecone-go/bluecone/demo/loyalty/service"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	return cli.Status("loyalty", service.Run(ctx, os.Args[1:], os.Stdout, os.Stderr), os.Stderr)
}
