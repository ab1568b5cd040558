package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/demo"
	"github.com/datalayer/node-mounts/internal/verify"
	"github.com/datalayer/node-mounts/operator"
)

// Exit statuses.
const (
	exitOK = iota
	exitError
	exitUsage
	exitChecks
	exitTimeout
)

// ExitStatus is one row of the table of exit statuses.
type ExitStatus struct {
	Status  int
	Meaning string
}

// ExitStatuses is the table of exit statuses.
func ExitStatuses() []ExitStatus {
	return []ExitStatus{
		{exitOK, "done; after a wait: what the command asked for is so (`wait`: the whole set)"},
		{exitError, "an error; after a wait: something of that is not so"},
		{exitUsage, "the command line cannot be understood"},
		{exitChecks, "something that was checked is not as it must be"},
		{exitTimeout, "no answer in time"},
	}
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usage says so. Errors of other packages have the method too.
func (usageError) Usage() bool { return true }

// hinted is an error with what to do about it.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

// Hint is what to do. Errors of other packages have the method too.
func (h hinted) Hint() string { return h.hint }

// timedOut is an answer that did not come in time.
type timedOut struct{ error }

func (t timedOut) Unwrap() error { return t.error }

// several are errors that are told one by one.
type several []error

func (s several) Error() string   { return errors.Join(s...).Error() }
func (s several) Unwrap() []error { return s }

// exitStatus is the one place where an error becomes an exit status.
func exitStatus(err error) int {
	var usage interface{ Usage() bool }
	var late timedOut
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage) && usage.Usage():
		return exitUsage
	case errors.As(err, &late):
		return exitTimeout
	case errors.Is(err, demo.ErrFailed), errors.Is(err, verify.ErrFailed):
		return exitChecks
	}
	return exitError
}

// report tells the user of an error: what it is, a line each, and what to do,
// each thing once. name is what the program is called by.
func report(w io.Writer, name string, err error) {
	if err == nil {
		return
	}
	errs := several{err}
	if s, ok := errors.AsType[several](err); ok {
		errs = s
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(w, "error: interrupted")
		errs = beside(err, context.Canceled)
	}
	if errors.Is(err, demo.ErrOutput) && errors.Is(err, syscall.EPIPE) {
		errs = beside(err, demo.ErrOutput) // `demo | head`: whoever reads has seen enough
	}
	told := map[string]bool{}
	var hints []string
	for _, e := range errs {
		line := "error: " + plain(oneLine(e.Error()))
		hint := strings.ReplaceAll(hintOf(e, name), "`"+programName, "`"+name)
		if !told[line] {
			fmt.Fprintln(w, line)
		}
		if hint != "" && !told[hint] {
			hints = append(hints, hint)
		}
		told[line], told[hint] = true, true
	}
	for _, h := range hints {
		fmt.Fprintln(w, "hint:", h)
	}
}

// oneLine makes a line of text that has several. Some programs leave lines between
// theirs empty, or end one with a mark of its own.
func oneLine(text string) string {
	var one string
	for line := range strings.Lines(text) {
		switch line = strings.TrimSpace(line); {
		case line == "":
		case one == "":
			one = line
		case strings.ContainsRune(".:;,", rune(one[len(one)-1])):
			one += " " + line
		default:
			one += "; " + line
		}
	}
	return one
}

// beside are the errors joined to one: what could not be put away when something
// was interrupted.
func beside(err, one error) several {
	joined, ok := err.(interface{ Unwrap() []error }) // at the top alone: what is wrapped deeper is its wrapper's
	switch {
	case ok:
		var out several
		for _, e := range joined.Unwrap() {
			out = append(out, beside(e, one)...)
		}
		return out
	case errors.Is(err, one):
		return nil
	}
	return several{err}
}

// hintOf says what to do about an error, "" where the error says it.
func hintOf(err error, name string) string {
	var advice interface{ Hint() string }
	var refusal *grant.Refusal
	var usage usageError
	var unreachable *url.Error
	switch {
	case errors.As(err, &advice):
		return advice.Hint()
	case errors.As(err, &refusal):
		return remedy(refusal.Code)
	case errors.As(err, &usage):
		return name + " --help lists the commands, and each command's --help its flags"
	case errors.Is(err, operator.ErrGone):
		return "`kubectl get pods` lists the Pods; -n chooses the namespace"
	case errors.Is(err, operator.ErrNoGrant):
		return "`node-mounts grant` asks for a mount"
	case errors.Is(err, operator.ErrEnding):
		return "grant on another Pod"
	case errors.Is(err, operator.ErrSuperseded):
		return "`node-mounts wait` waits for the set that the Pod asks for now"
	case apierrors.IsForbidden(err):
		return forbidden(err)
	case apierrors.IsUnauthorized(err):
		return "log in to the cluster again, or check --kubeconfig and --context"
	case untrusted(err) != "":
		return untrusted(err)
	case strings.Contains(err.Error(), "getting credentials: "): // client-go makes a text of what its plugin says
		return "the kubeconfig has a program for credentials (users[].user.exec), and it gave none: install it, or run its command by itself to see why"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &unreachable):
		return "the API server does not answer: check --kubeconfig and --context, or raise --request-timeout"
	}
	return ""
}

// forbidden says what is needed for what the API server refuses.
func forbidden(err error) string {
	const look = "`kubectl auth can-i --list` shows what your account may do"
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		if what := status.Status().Details.Kind; what != "" && what != "pods" {
			return "this needs a right on " + what + " that your account does not have: " + look
		}
	}
	return "this needs get, list, watch and patch on pods: " + look
}

// untrusted says what to do where the API server answers and its certificate is not
// accepted, "" for other errors: it is no question of whether it can be reached.
func untrusted(err error) string {
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var authority x509.UnknownAuthorityError
	var verification *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &name):
		return "the API server's certificate is for another name: check server in the kubeconfig, or set tls-server-name there"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the API server's certificate has expired or is not valid yet: renew it, and check this machine's clock"
	case errors.As(err, &authority), errors.As(err, &invalid), errors.As(err, &verification):
		return "the API server's certificate is not trusted: check certificate-authority in the kubeconfig, and that the server is the one it is for"
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "what answers there speaks no TLS: check server in the kubeconfig"
	}
	return ""
}

// remedy is the code table's word on what to do.
func remedy(code grant.Code) string {
	for _, c := range grant.Codes() {
		if c.Code == code {
			return c.Remedy
		}
	}
	return ""
}
