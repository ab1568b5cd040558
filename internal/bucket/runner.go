package bucket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/awscreds"
	"github.com/datalayer/node-mounts/internal/delivery"
	"github.com/datalayer/node-mounts/internal/plan"
	"github.com/datalayer/node-mounts/internal/secret"
)

// Runner runs the filesystems of buckets. Each has a token, for which it is given the
// session of its own Secret and no other, at an address that only the keeper's
// children reach.
type Runner struct {
	Settings    Settings
	Credentials *awscreds.Server
	// Listener is the keeper's, in its own network namespace.
	Listener func(ctx context.Context) (net.Listener, error)
	Log      *slog.Logger
	// Life is the agent's.
	Life context.Context //nolint:containedctx // see above

	mu       sync.Mutex
	instance string // of the keeper whose listener is served
	url      string
	stop     context.CancelFunc
}

var _ delivery.Runner = (*Runner)(nil)

// Prepare implements delivery.Runner.
func (r *Runner) Prepare(ctx context.Context, m plan.Mount, c delivery.Credential, at delivery.Place, tell func(error)) (*delivery.Run, error) {
	if c.Ref.Name == "" {
		return nil, &delivery.ProcessError{Code: grant.CodeSecretRefused, Reason: "a bucket needs a Secret with the session for it: name one in the grant"}
	}
	session, err := awscreds.Parse(c.Data, c.Ref.Name)
	if err != nil {
		return nil, err
	}
	url, err := r.serve(ctx, at.Instance)
	if err != nil {
		return nil, err
	}
	token := awscreds.NewToken()
	command, err := r.Settings.Command(m, session, Place{Cache: at.Cache, CredentialsURL: url, Token: token})
	if wrong, ok := errors.AsType[*SourceError](err); ok {
		return nil, &delivery.ProcessError{Code: grant.CodeInvalidSource, Reason: wrong.Reason}
	}
	if err != nil {
		return nil, err
	}
	return &delivery.Run{
		Name: "s3", Program: r.Settings.Program, Args: command.Args, Env: command.Env, Files: command.Files, Memory: r.Settings.Memory,
		Note: []byte(token), End: r.Credentials.Open(token, c.Ref, tell),
	}, nil
}

// Resume implements delivery.Runner. The note is the token.
func (r *Runner) Resume(ctx context.Context, note []byte, ref secret.Ref, at delivery.Place, tell func(error)) (end func(), err error) {
	if len(note) == 0 {
		return nil, errors.New("the process has no token: it was started by another program")
	}
	if _, err := r.serve(ctx, at.Instance); err != nil {
		return nil, err
	}
	return r.Credentials.Open(string(note), ref, tell), nil
}

// serve answers for credentials on the keeper's listener, and says where that is.
// Another keeper has another.
func (r *Runner) serve(ctx context.Context, instance string) (url string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if instance == r.instance && r.url != "" {
		return r.url, nil
	}
	listener, err := r.Listener(ctx)
	if err != nil {
		return "", fmt.Errorf("ask the keeper for its listener: %w", err)
	}
	if r.stop != nil {
		r.stop()
	}
	life, stop := context.WithCancel(r.Life)
	r.instance, r.stop = instance, stop
	r.url = "http://" + listener.Addr().String() + awscreds.Path
	go func() {
		if err := r.Credentials.Serve(life, listener); life.Err() == nil {
			r.Log.Error("serving credentials", "error", err)
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.instance == instance {
				r.url = "" // the next process finds it served again
			}
		}
	}()
	return r.url, nil
}
