package delivery_test

import (
	"context"
	"errors"
	"testing"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/plan"
)

// refusing is a store that has nothing, and keeps what it was asked for.
type refusing struct {
	delivery.Checkouts
	asked chan checkout.Request
}

var errRefused = errors.New("refused")

func (r refusing) Get(_ context.Context, asked checkout.Request) (*checkout.Checkout, error) {
	r.asked <- asked
	return nil, errRefused
}

func (refusing) Recover(map[string]string) []string { return nil }

func (refusing) Close() {}

// Places are shared among Pods: whose a request is has to be said.
func TestAContentIsAskedForInTheNameOfItsPod(t *testing.T) {
	b := newBench(t)
	set := grant.Set{Mounts: []grant.Mount{{
		Kind: grant.KindGit, Source: "https://git.example.org/r", Revision: "3f786850e387550fdab836ed7e6dc881de23001b",
		Target: "code", Mode: grant.ReadOnly, AllowExec: true,
	}}}
	p := plan.Build(set, plan.Policy{Serves: map[grant.Kind]bool{grant.KindGit: true}})
	if len(p.Mounts) != 1 {
		t.Fatalf("%+v", p)
	}
	store := refusing{asked: make(chan checkout.Request, 1)}
	d := &delivery.Materialize{Table: b.table, Proof: b.bind.Proof, Life: t.Context(), Ended: func(string) {}}
	d.Serve(store, nil, nil)
	defer d.Close()
	if _, err := d.Deliver(t.Context(), b.tree, p.Mounts[0], delivery.Credential{}); !errors.Is(err, errRefused) {
		t.Errorf("it says %v", err)
	}
	if got := <-store.asked; got.Pod != "pod" || got.Use != "pod/code" || got.Credential != nil {
		t.Errorf("asked for %+v", got)
	}
}
