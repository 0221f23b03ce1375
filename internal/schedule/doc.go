// Package schedule runs jobs by cron expression, each due run once in the whole deployment.
//
// A job's turn is a row in bc_job_lease, taken with one conditional UPDATE by the
// database's clock: no two instances run a job at the same time, and a turn that one of
// them has taken is over for the others, however far their own clocks are off. A turn that
// everybody missed is made up for once. Every run leaves a row in bc_job_run.
package schedule
