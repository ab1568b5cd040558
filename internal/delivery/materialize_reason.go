package delivery

import (
	"errors"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/internal/secret"
)

// credential is what a Secret holds for git. Which of it a server needs, and what is
// missing, only the address tells: the store says so.
func credential(data secret.Data) *checkout.Credential {
	text := func(key string) string {
		v, _ := data.Value(key)
		return string(v)
	}
	key, _ := data.Value("ssh-privatekey")
	known, _ := data.Value("known_hosts")
	return &checkout.Credential{
		Token: text("token"), Username: text("username"), Password: text("password"), SSHKey: key, KnownHosts: known,
	}
}

// contentError is why there is no content.
type contentError struct{ err error }

func (e *contentError) Error() string { return e.err.Error() }

func (e *contentError) Unwrap() error { return e.err }

// explainContent is Explain for content that could not be made, "" for other errors.
func explainContent(err error) (grant.Code, string) {
	failed, ok := errors.AsType[*contentError](err)
	if !ok {
		return "", ""
	}
	why, ok := errors.AsType[*checkout.Error](failed.err)
	if !ok {
		return grant.CodeMountFailed, "there is no checkout: " + reason(failed.err)
	}
	text := why.Message
	switch {
	case why.Class == checkout.DiskFull, why.Class == checkout.TooLarge:
		// git's own words name files, and add nothing.
	case ofSystem(why.Err):
		text += ": " + reason(why.Err)
	case !why.Node:
		text = why.Error()
	}
	switch why.Class {
	case checkout.AuthRefused:
		return grant.CodeSecretRefused, text
	case checkout.Refused, checkout.Invalid:
		return grant.CodeInvalidSource, text
	}
	return grant.CodeMountFailed, text
}

// Pause is how long to wait after the count-th failure before the content is tried
// again, 0 for other failures. Each try is a process and a conversation with
// somebody's server; what is too large is downloaded again to find that out.
func Pause(err error, count int) time.Duration {
	failed, ok := errors.AsType[*contentError](err)
	if !ok {
		return 0
	}
	first, last := 2*time.Second, 2*time.Minute
	switch checkout.ClassOf(failed.err) {
	case checkout.AuthRefused:
		// Another Secret is noticed by itself, and a server that counts wrong credentials
		// locks out the address of the node, which is every tenant's.
		first, last = secret.PollInterval, 10*time.Minute
	case checkout.TooLarge, checkout.Timeout:
		first, last = time.Minute, 10*time.Minute
	case checkout.Invalid:
		// A commit does not change, and neither does an address. Another git, or another
		// limit, comes with another agent, which has no failures yet.
		first, last = time.Hour, 24*time.Hour
	}
	return min(first<<min(max(count-1, 0), 10), last)
}
