package model

import "fmt"

// Violation is a broken promise, and the shortest way to it.
type Violation struct {
	Promise string
	Steps   []string
}

// Explored tells how much was looked at.
type Explored struct {
	States    int
	Violation *Violation // nil if every promise holds
}

// step is one way to go on.
type step[S any] struct {
	to     S
	fault  bool
	format string
	args   []any
}

func (st *step[S]) name() string { return fmt.Sprintf(st.format, st.args...) }

// machine is what can be explored.
type machine[S comparable] interface {
	start() S
	steps(from S) []step[S]
	broken(s *S) string // the promise that the state breaks
	left(s *S) string   // what is not finished
}

// arrival is how a state was reached first.
type arrival struct {
	from int32
	step int32 // the number of the step among those of from
}

// explorer remembers where it has been.
type explorer[S comparable] struct {
	m     machine[S]
	list  []S
	came  []arrival
	seen  map[S]int32
	edges [][2]int32 // from and to, of steps that are no faults
}

// explore visits all states breadth first, until one breaks a promise, and shows them to visit
// if there is one. Then it looks whether everything can be finished from each of them without further
// faults.
func explore[S comparable](m machine[S], most int, visit func(s *S)) (Explored, error) {
	x := &explorer[S]{m: m, list: []S{m.start()}, came: []arrival{{from: -1}}, seen: map[S]int32{m.start(): 0}}
	for at := 0; at < len(x.list); at++ {
		if visit != nil {
			visit(&x.list[at])
		}
		if promise := m.broken(&x.list[at]); promise != "" {
			return Explored{len(x.list), &Violation{promise, x.way(at)}}, nil
		}
		if x.expand(int32(at)); len(x.list) > most {
			return Explored{States: most}, fmt.Errorf("model: more than %d states: lower the bounds", most)
		}
	}
	return Explored{len(x.list), x.hopeless()}, nil
}

// expand adds the states that follow one.
func (x *explorer[S]) expand(at int32) {
	for i, n := range x.m.steps(x.list[at]) {
		to, ok := x.seen[n.to]
		if !ok {
			to = int32(len(x.list))
			x.seen[n.to] = to
			x.list, x.came = append(x.list, n.to), append(x.came, arrival{at, int32(i)})
		}
		if !n.fault {
			x.edges = append(x.edges, [2]int32{at, to})
		}
	}
}

// way names the steps to a state.
func (x *explorer[S]) way(at int) []string {
	if x.came[at].from < 0 {
		return nil
	}
	from := x.came[at].from
	names := x.way(int(from))
	return append(names, x.m.steps(x.list[from])[x.came[at].step].name())
}

// hopeless finds the first state from which not everything can be finished any more.
func (x *explorer[S]) hopeless() *Violation {
	into := x.predecessors()
	finishes, todo := make([]bool, len(x.list)), []int32(nil)
	for at := range x.list {
		if x.m.left(&x.list[at]) == "" {
			finishes[at], todo = true, append(todo, int32(at))
		}
	}
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, from := range into(at) {
			if !finishes[from] {
				finishes[from], todo = true, append(todo, from)
			}
		}
	}
	for at, ok := range finishes {
		if !ok {
			return &Violation{x.m.left(&x.list[at]), x.way(at)}
		}
	}
	return nil
}

// predecessors tells for each state from which ones a step leads to it.
func (x *explorer[S]) predecessors() func(at int32) []int32 {
	first := make([]int32, len(x.list)+1)
	for _, e := range x.edges {
		first[e[1]+1]++
	}
	for at := range x.list {
		first[at+1] += first[at]
	}
	from, next := make([]int32, len(x.edges)), append([]int32(nil), first...)
	for _, e := range x.edges {
		from[next[e[1]]] = e[0]
		next[e[1]]++
	}
	return func(at int32) []int32 { return from[first[at]:first[at+1]] }
}
