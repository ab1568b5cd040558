package checkout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// queue is a set of slots and the turns that were asked for, by name.
type queue struct {
	*slots
	turns map[string]*turn
}

func newQueue(all, perHost int) *queue {
	return &queue{newSlots(all, perHost), map[string]*turn{}}
}

// ask asks for a turn that is called "pod host content".
func (q *queue) ask(names ...string) {
	for _, name := range names {
		var pod, host, content string
		_, _ = fmt.Sscan(name, &pod, &host, &content)
		q.turns[name] = q.enter(host, content, pod)
	}
}

func (q *queue) end(name string) {
	q.leave(q.turns[name])
	delete(q.turns, name)
}

// run wants exactly these turns to have come.
func (q *queue) run(t *testing.T, when string, want ...string) {
	t.Helper()
	var running []string
	for name, turn := range q.turns {
		select {
		case <-turn.begun:
			running = append(running, name)
		default:
		}
	}
	slices.Sort(running)
	slices.Sort(want)
	if !slices.Equal(running, want) {
		t.Errorf("%s, %q run, expected %q", when, running, want)
	}
}

func TestOneServerTakesItsShareOfTheSlotsAndNoMore(t *testing.T) {
	q := newQueue(4, 3)
	q.ask("a slow 1", "b slow 2", "c slow 3", "d slow 4", "e slow 5")
	q.run(t, "with one server", "a slow 1", "b slow 2", "c slow 3")
	q.ask("f quick 6")
	q.run(t, "with another", "a slow 1", "b slow 2", "c slow 3", "f quick 6")
	q.end("f quick 6")
	q.run(t, "after it", "a slow 1", "b slow 2", "c slow 3")
	q.end("a slow 1")
	q.run(t, "with a place at the server", "b slow 2", "c slow 3", "d slow 4")
}

func TestAPodHasNoMoreSlotsThanItLeaves(t *testing.T) {
	q := newQueue(4, 3)
	q.ask("greedy h1 1", "greedy h2 2", "greedy h3 3", "greedy h4 4")
	q.run(t, "alone", "greedy h1 1", "greedy h2 2")
	q.ask("second h1 5", "second h2 6", "third h1 7", "fourth h2 8")
	q.run(t, "with others", "greedy h1 1", "greedy h2 2", "second h1 5", "third h1 7")
	q.end("second h1 5")
	// second has nothing any more and came before fourth, but has had a turn.
	q.run(t, "with a place", "greedy h1 1", "greedy h2 2", "third h1 7", "fourth h2 8")
	for _, name := range []string{"greedy h1 1", "third h1 7", "fourth h2 8"} {
		q.end(name)
	}
	q.run(t, "with room for all", "greedy h2 2", "greedy h3 3", "second h2 6")
}

func TestAPodLeavesAPlaceAtItsServer(t *testing.T) {
	q := newQueue(8, 3)
	q.ask("greedy h 1", "greedy h 2", "greedy h 3")
	q.run(t, "alone", "greedy h 1", "greedy h 2")
	q.ask("other h 4")
	q.run(t, "with another Pod", "greedy h 1", "greedy h 2", "other h 4")
}

func TestOneSlotGoesRoundThePods(t *testing.T) {
	q := newQueue(1, 1)
	q.ask("a h 1", "a h 2", "b h 3")
	q.run(t, "at first", "a h 1")
	q.end("a h 1")
	q.run(t, "then", "b h 3")
	q.end("b h 3")
	q.run(t, "then", "a h 2")
}

func TestWorkOnOneContentIsDoneOnceAndWaitsWithoutASlot(t *testing.T) {
	q := newQueue(3, 2)
	q.ask("a h same", "b h same", "c h same", "d h other", "e g third")
	q.run(t, "at first", "a h same", "d h other", "e g third")
	if !q.wants("same") || !q.wants("third") || q.wants("fourth") {
		t.Error("what is worked on is not known")
	}
	q.end("a h same")
	q.run(t, "then", "b h same", "d h other", "e g third")
	q.end("b h same")
	q.end("c h same")
	if q.wants("same") {
		t.Error("a content is wanted that nobody works on")
	}
}

func TestAnyPodThatWaitsForATurnPaysForIt(t *testing.T) {
	q := newQueue(4, 3)
	q.ask("greedy h1 1", "greedy h2 2", "greedy h3 3")
	q.run(t, "alone", "greedy h1 1", "greedy h2 2")
	joined := q.turns["greedy h3 3"]
	q.join(joined, "modest")
	q.run(t, "with another Pod", "greedy h1 1", "greedy h2 2", "greedy h3 3")
	if joined.payer != "modest" {
		t.Errorf("%s pays", joined.payer)
	}
	q.ask("modest h4 4", "third h5 5")
	q.run(t, "beside it", "greedy h1 1", "greedy h2 2", "greedy h3 3", "third h5 5")
	q.part(joined, "modest")
	if len(joined.pods) != 1 {
		t.Errorf("waiting: %v", joined.pods)
	}
}

func TestWhoGivesUpLeavesNothingInTheQueue(t *testing.T) {
	q := newQueue(1, 1)
	q.ask("a h 1", "b h 2", "c h 3")
	ctx, stop := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	stop(gone)
	if err := q.wait(ctx, q.turns["b h 2"]); !errors.Is(err, gone) {
		t.Errorf("the wait ended with %v", err)
	}
	q.end("b h 2")
	q.end("a h 1")
	q.run(t, "then", "c h 3")
	q.end("c h 3")
	if len(q.waiting) != 0 || len(q.running) != 0 || len(q.last) != 0 {
		t.Errorf("left: %d waiting, %d running, %d Pods", len(q.waiting), len(q.running), len(q.last))
	}
}
