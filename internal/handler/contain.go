package handler

import "runtime/debug"

// Contain calls code of the user's. It reports a panic as a [PanicError], and so a call of runtime.Goexit, which would end the goroutine
// of a worker for good.
func Contain(call func() error) error { return <-contained(call) }

// contained is [Contain] for whoever does not wait until the end. The channel has the one answer.
func contained(call func() error) <-chan error {
	answer := make(chan error, 1)
	go func() {
		err := error(&PanicError{Value: "runtime.Goexit was called"})
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: string(debug.Stack())}
			}
			answer <- err
		}()
		err = call()
	}()
	return answer
}
