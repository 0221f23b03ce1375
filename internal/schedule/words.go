package schedule

import (
	"fmt"
	"strconv"
	"strings"
)

// Words says in English when a cron expression is due, as far as it is a plain interval; any other
// expression stands for itself.
func Words(expr string) string {
	f := strings.Fields(expr)
	if len(f) == 5 {
		f = append([]string{"0"}, f...)
	}
	if len(f) != 6 {
		return expr
	}
	free := func(fields ...string) bool {
		for _, s := range fields {
			if s != "*" && s != "?" {
				return false
			}
		}
		return true
	}
	second, minute, hour := f[0], f[1], f[2]
	days := free(f[3:]...)
	if n, ok := every(second); ok && free(minute, hour) && days {
		return interval(n, "second")
	}
	if n, ok := every(minute); ok && second == "0" && free(hour) && days {
		return interval(n, "minute")
	}
	if n, ok := every(hour); ok && second == "0" && minute == "0" && days {
		return interval(n, "hour")
	}
	h, hErr := strconv.Atoi(hour)
	m, mErr := strconv.Atoi(minute)
	if hErr == nil && mErr == nil && second == "0" && days {
		return fmt.Sprintf("every day at %02d:%02d UTC", h, m)
	}
	return expr
}

// every reads "*/n", "0/n" and "*".
func every(field string) (int, bool) {
	if field == "*" {
		return 1, true
	}
	rest, ok := strings.CutPrefix(field, "*/")
	if !ok {
		rest, ok = strings.CutPrefix(field, "0/")
	}
	n, err := strconv.Atoi(rest)
	return n, ok && err == nil && n > 0
}

func interval(n int, unit string) string {
	if n == 1 {
		return "every " + unit
	}
	return fmt.Sprintf("every %d %ss", n, unit)
}
