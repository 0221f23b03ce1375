// Package schedule runs periodic jobs of your own as the library runs its own: each turn once in the whole deployment.
//
//	jobs := schedule.New(db).
//		Add("coupons.expire", "0 3 * * *", expireCoupons). // func(ctx context.Context) error
//		Add("reports.send", "0 0 8 * * MON", sendReports)
//	err := bus.Run(ctx, pub, jobs)
//
// # Contract
//
// A turn is taken by one conditional UPDATE of a row in bc_job_lease, by the database's clock: of all instances that have a
// job, one runs it, never two at a time. A turn that everybody has missed is made up for once. The lease of an instance that
// dies ends after a minute; a turn whose instance died is not repeated: the job runs at its next turn. What one run does it
// may therefore do in part, so a job goes on where it stopped.
//
// An error, and a panic, is a FAILED run: it is logged, stands in the history (bc_job_run keeps the last 200 runs of each
// job), and raises the alert job_failed; the job is tried again at its next turn. When the context of [Schedule.Run] ends,
// so does the context of each job; Run waits for those that run.
//
// The console and the command line list the jobs with their history. Give [Schedule.Jobs] to ops.Config.Jobs, so that they
// can run one out of turn here, and [Schedule.Crons] to alert.Config.Jobs, so that a missed turn raises the alert job_late.
package schedule
