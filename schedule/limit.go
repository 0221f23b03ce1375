package schedule

// maxName is the longest name of a job: bc_job_lease.job_code has no more.
const maxName = 64
