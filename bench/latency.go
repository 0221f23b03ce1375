package main

import "context"

func latencies(context.Context, options, *machine) error { return nil }
func produces(context.Context, options, *machine) error  { return nil }
