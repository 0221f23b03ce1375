// Package schedule runs periodic jobs of your own as the library runs its own: each turn once in the whole deployment.
//
//	jobs := schedule.New(db).
//		Add("coupons.expire", "0 3 * * *", expireCoupons). // func(ctx context.Context) error
//		Add("reports.send", "0 0 8 * * MON", sendReports)
//	err := bus.Run(ctx, pub, jobs)
//
// # Contract
//
// An instance takes a turn by one conditional UPDATE of a row in bc_job_lease, by the database's clock. Of all instances that
// have a job one runs it, never two at a time. If all instances missed turns, one of them runs the job once for all of these. When
// an instance dies, its lease ends after a minute, and nobody repeats the turn: the job runs at its next turn. So a run may
// end in the middle of its work: write the job so that the next run goes on where the last one stopped.
//
// An instance renews the lease while the job runs. If it cannot, for a minute, because the database is away, it ends the context of
// the job, and another instance may run the job from then on. Heed the context: a job that goes on without it runs beside that one.
//
// An error, a panic, and a call of runtime.Goexit, is a FAILED run: it is logged, stands in the history (bc_job_run keeps the
// last 200 runs of each job), and raises the alert job_failed; the job is tried again at its next turn. When the context of
// [Schedule.Run] ends, so does the context of each job; Run waits for those that run.
//
// The console and the command line list the jobs with their history. Give [Schedule.Jobs] to ops.Config.Jobs, so that they
// can run one out of turn here, and [Schedule.Crons] to alert.Config.Jobs, so that a missed turn raises the alert job_late.
package schedule
