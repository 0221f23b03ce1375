// Command serve starts a private database server and prints its URL. The server ends, and its files go, when standard
// input ends or at an interrupt.
//
//	go run ./internal/dbserver/serve -db postgres -large
//
// The benchmark, which uses no package from internal/, runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/bluecone-go/bluecone/internal/dbserver"
)

func main() {
	db := flag.String("db", "mysql", "mysql, mysql9 or postgres")
	large := flag.Bool("large", false, "2 GiB of cache, as the benchmark has")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *db, *large, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1) //nolint:gocritic // nothing waits for the signals any more
	}
}

// serve runs a server until in or ctx ends.
func serve(ctx context.Context, db string, large bool, in io.Reader, out io.Writer) error {
	settings := dbserver.Durable
	if large {
		settings = dbserver.Large
	}
	server, err := dbserver.Start(db, settings)
	if err != nil {
		return err
	}
	defer server.Stop()
	if _, err := fmt.Fprintln(out, server.URL); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in) // an error ends it as well
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return nil
}
