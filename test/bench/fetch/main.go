// Command fetch is a program with a store of checkouts, for the benchmark. It imports
// what the agent imports: a checkout starts its own program again, which takes the
// longer the more there is in it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	_ "github.com/datalayer/node-mounts/internal/agentcmd" // for its weight
	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/internal/checkout/checkouttest"
)

const (
	nobody = 65534 // who runs git
	use    = "bench/target"
)

// owner is whose the checkouts are.
func owner() checkout.Owner { return checkout.Owner{UID: 1000, GID: 100} }

func main() {
	if code, ours := checkout.Main(os.Args); ours {
		os.Exit(code)
	}
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run keeps a store in a folder, and trusts a server. It reads addresses and commits;
// each is answered with the nanoseconds that the checkout took and where it is. On
// the next line, whatever it says, the checkout is removed.
func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 3 {
		return errors.New("usage: fetch FOLDER CERTIFICATE-FILE ADDRESS:PORT")
	}
	ca, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	server, err := netip.ParseAddrPort(args[2])
	if err != nil {
		return err
	}
	limits := checkouttest.Limits()
	limits.Budget = 0
	ctx := context.Background()
	store, err := checkout.Open(ctx, checkout.Config{
		Root: args[0], Boot: "bench", User: nobody, Group: nobody, Owner: owner(), CA: ca,
		Limits: limits, Network: checkout.Policy{Allow: []netip.AddrPort{server}},
	})
	if err != nil {
		return err
	}
	defer store.Close()
	store.Recover(nil)
	for {
		r := checkout.Request{Use: use, Pod: "bench"}
		if _, err := fmt.Fscan(in, &r.URL, &r.Revision); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		began := time.Now()
		made, err := store.Get(ctx, r)
		took := time.Since(began)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, took.Nanoseconds(), made.Path)
		var seen string
		if _, err := fmt.Fscan(in, &seen); err != nil {
			return err
		}
		store.Release(use)
		if store.Collect(ctx) == 0 {
			return errors.New("the checkout was not removed")
		}
		fmt.Fprintln(out, "removed")
	}
}
