// Package schedule runs jobs by cron expression, each due run once in the whole deployment.
//
// A job's due time is a row in bc_job_lease, taken with one conditional UPDATE by the
// database's clock: a due time that one instance has taken is over for the others, however far
// their own clocks are off. A due time that everybody missed is made up for once. Every run
// leaves a row in bc_job_run.
//
// While a job runs its instance renews the lease, three times in its length, and ends the
// job's context when it finds the lease lost, and at the latest when the lease is over since
// the last renewal that succeeded: its database is away, say. So no two instances run a job
// at the same time, as long as the job ends with its context. One that goes on after that
// runs beside the next.
package schedule
