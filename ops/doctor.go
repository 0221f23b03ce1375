package ops

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"

	"github.com/bluecone-go/bluecone/doctor"
)

// Doctor examines the database. It takes one turn of a reader, and Config.Timeout for all of it: a check that comes to
// nothing by then is a WARN that says so. What the database answered to a check that could not look is in the log, under a
// reference that the report names.
func (o *Ops) Doctor(ctx context.Context) (doctor.Report, error) {
	if err := CallerOf(ctx).whole("an examination"); err != nil {
		return nil, err
	}
	return share(ctx, o.access, "doctor", nil, o.examiner.examine)
}

// DoctorWithErrors is [Ops.Doctor] for those who have the database themselves, as on the command line: the report says what
// the database answered to a check that could not look.
func (o *Ops) DoctorWithErrors(ctx context.Context) (doctor.Report, error) {
	if err := CallerOf(ctx).whole("an examination"); err != nil {
		return nil, err
	}
	return o.examiner.examineInTurn(ctx)
}

// examiner asks the doctor, for readers who may not see what the database answers.
type examiner struct {
	access *access
	cfg    doctor.Config
	log    *slog.Logger
}

func (e examiner) examine(ctx context.Context) (doctor.Report, error) {
	report, err := e.examineInTurn(ctx)
	return e.withoutErrors(ctx, report), err
}

func (e examiner) examineInTurn(ctx context.Context) (doctor.Report, error) {
	ctx, done, err := e.access.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	report, err := doctor.Examine(ctx, e.access.db, e.cfg)
	if errors.Is(ctx.Err(), context.Canceled) { // nobody waits for it
		return nil, ctx.Err()
	}
	return report, err
}

// withoutErrors puts the reference of a line of the log in the place of what the database answered to checks.
func (e examiner) withoutErrors(ctx context.Context, report doctor.Report) doctor.Report {
	reference := rand.Text()[:8]
	var answers []any
	for i, f := range report {
		if says, ok := f.Unexamined(); ok {
			answers = append(answers, slog.String(f.Check, says))
			report[i] = f.Logged(reference)
		}
	}
	if len(answers) > 0 {
		e.log.ErrorContext(ctx, "ops: checks of the doctor could not look", "reference", reference, slog.Group("checks", answers...))
	}
	return report
}
