package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/cli"
	"github.com/bluecone-go/bluecone/doctor"
)

const doctorUsage = `Examines a database and says what is wrong with it, and what to do about it. It only reads.
Exit status 1 means that the event bus must not run on it.
`

// workers is what the consumers of the monolith may use at a time: three of them, with four each.
const workers = 12

// doctorConfig lets the demo run on servers that lose commits when they crash: it is a demo.
func doctorConfig() doctor.Config {
	return doctor.Config{Workers: workers, Accept: []string{"durability"}}
}

var errUnfit = errors.New("the database is not fit: see the lines with FAIL")

// examine prints what the doctor finds.
func examine(ctx context.Context, args []string, stdout io.Writer) (err error) {
	fs := flag.NewFlagSet("bluecone doctor", flag.ContinueOnError)
	database := fs.String("dsn", "", "database (required)")
	asJSON := fs.Bool("json", false, "print JSON")
	if err := cli.Parse(fs, args, stdout, doctorUsage); err != nil {
		return err
	}
	if *database == "" {
		return fmt.Errorf("%w: --dsn is missing", cli.ErrUsage)
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // what matters is in the report
	db, err := dburl.Open(ctx, *database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	report, err := doctor.Examine(ctx, db, doctor.Config{Workers: workers})
	if err != nil {
		return err
	}
	if *asJSON {
		err = json.NewEncoder(stdout).Encode(report)
	} else {
		err = report.Print(stdout)
	}
	if err == nil && report.Worst() == doctor.Fail {
		err = errUnfit
	}
	return err
}
