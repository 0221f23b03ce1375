package consistency

import "context"

// Look reports what the named checks find, or all of them. It repairs nothing, writes nothing, and
// takes no turn from the job.
func (s *Consistency) Look(ctx context.Context, names ...string) (Report, error) {
	if err := s.known(names); err != nil {
		return nil, err
	}
	looker := *s
	looker.cfg.ReportOnly = true
	p := &pass{only: names, report: make(Report)}
	_, err := looker.runChecks(context.WithValue(ctx, passKey{}, p))
	return p.report, err
}
