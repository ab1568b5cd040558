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
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/demo"
	"github.com/datalayer/node-mounts/operator"
)

// ExitStatus is one row of the table of exit statuses.
type ExitStatus struct {
	Status  int
	Meaning string
}

// ExitStatuses is the table of exit statuses.
func ExitStatuses() []ExitStatus {
	return []ExitStatus{
		{advice.StatusOK, "done; after a wait: what the command asked for is so (`wait`: the whole set)"},
		{advice.StatusError, "an error; after a wait: something of that is not so"},
		{advice.StatusUsage, "the command line cannot be understood"},
		{advice.StatusChecks, "something that was checked is not as it must be"},
		{advice.StatusTimeout, "no answer in time, or none that is final"},
	}
}

// exitStatus is the exit status that an error ends in.
func exitStatus(err error) int {
	if errors.Is(err, demo.ErrFailed) {
		return advice.StatusChecks
	}
	return advice.Status(err)
}

// report tells the user of an error. name is what the program is called by.
func report(w io.Writer, name string, err error) {
	told := err
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(w, "error: interrupted")
		told = beside(err, context.Canceled)
	}
	if errors.Is(err, demo.ErrOutput) && errors.Is(err, syscall.EPIPE) {
		told = beside(err, demo.ErrOutput) // `demo | head`: whoever reads has seen enough
	}
	advice.Print(w, told, func(err error) string {
		return strings.ReplaceAll(hintOf(err, name), "`"+programName, "`"+name)
	})
}

// beside are the errors joined to one: what could not be put away when something
// was interrupted.
func beside(err, one error) advice.Several {
	joined, ok := err.(interface{ Unwrap() []error }) // at the top alone: what is wrapped deeper is its wrapper's
	switch {
	case ok:
		var out advice.Several
		for _, e := range joined.Unwrap() {
			out = append(out, beside(e, one)...)
		}
		return out
	case errors.Is(err, one):
		return nil
	}
	return advice.Several{err}
}

// hintOf says what to do about an error, "" where the error says it.
func hintOf(err error, name string) string {
	var refusal *grant.Refusal
	var unreachable *url.Error
	hint := advice.Hint(err)
	switch {
	case hint != "":
		return hint
	case errors.As(err, &refusal):
		return remedy(refusal.Code)
	case exitStatus(err) == advice.StatusUsage:
		return name + " --help lists the commands, and each command's --help its flags"
	case errors.Is(err, operator.ErrGone):
		return "`kubectl get pods` lists the Pods; -n chooses the namespace"
	case errors.Is(err, operator.ErrNoGrant):
		return "`node-mounts grant` asks for a mount"
	case errors.Is(err, operator.ErrEnding):
		return "grant on another Pod"
	case errors.Is(err, operator.ErrSuperseded):
		return "`node-mounts wait` waits for the set that the Pod asks for now"
	case apierrors.IsConflict(err):
		return "something writes the Pod all the time: `kubectl get pod POD -o yaml --show-managed-fields` shows what; try again when it has ended"
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
