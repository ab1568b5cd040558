package delivery

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/internal/secret"
)

func TestEachClassOfFailureHasTheCodeThatTheExplanationNames(t *testing.T) {
	for class, code := range map[checkout.Class]grant.Code{
		checkout.NotFound: grant.CodeMountFailed, checkout.AuthRefused: grant.CodeSecretRefused, checkout.Unreachable: grant.CodeMountFailed,
		checkout.Timeout: grant.CodeMountFailed, checkout.TooLarge: grant.CodeMountFailed, checkout.DiskFull: grant.CodeMountFailed,
		checkout.Refused: grant.CodeInvalidSource, checkout.Invalid: grant.CodeInvalidSource, checkout.Failed: grant.CodeMountFailed,
	} {
		err := fmt.Errorf("deliver: %w", &contentError{&checkout.Error{Class: class, Message: "the sentence", Detail: "its words"}})
		got, text := Explain(err)
		if got != code || !strings.HasPrefix(text, "the sentence") {
			t.Errorf("%s: %s %q", class, got, text)
		}
		if Pause(err, 1) < 2*time.Second || Pause(err, 99) < Pause(err, 1) || Pause(err, 99) > 24*time.Hour {
			t.Errorf("%s is tried again after %s, and later %s", class, Pause(err, 1), Pause(err, 99))
		}
	}
	if Pause(errors.New("another"), 1) != 0 {
		t.Error("other failures wait as long as a checkout")
	}
}

func TestTooLargeIsNotDownloadedAgainAtOnce(t *testing.T) {
	if p := Pause(&contentError{&checkout.Error{Class: checkout.AuthRefused}}, 1); p < secret.PollInterval {
		t.Errorf("a credential that was refused is tried again after %s", p)
	}
	if p := Pause(&contentError{&checkout.Error{Class: checkout.TooLarge}}, 1); p < time.Minute {
		t.Errorf("it is after %s", p)
	}
}

func TestWhatNeverChangesIsNotTriedForEver(t *testing.T) {
	if p := Pause(&contentError{&checkout.Error{Class: checkout.Invalid}}, 1); p < time.Hour {
		t.Errorf("it is after %s", p)
	}
}

func TestAnAnswerHasNoPathOfTheNodeAndNothingOfItsNetwork(t *testing.T) {
	const secret = "/node/path"
	for _, err := range []error{
		&fs.PathError{Op: "open", Path: secret, Err: unix.EACCES},
		&os.LinkError{Op: "rename", Old: secret, New: secret, Err: unix.EACCES},
		&os.LinkError{Op: "rename", Old: secret, New: secret, Err: unix.EACCES},
		fmt.Errorf("%s: %w", secret, os.NewSyscallError("unlink", unix.EACCES)),
		errors.Join(errors.New(secret), unix.EACCES),
	} {
		for _, class := range []checkout.Class{checkout.Failed, checkout.DiskFull, checkout.Unreachable} {
			for _, e := range []error{
				&contentError{&checkout.Error{Class: class, Message: "the sentence", Detail: err.Error(), Err: err}},
				&contentError{&checkout.Error{Class: class, Message: "the sentence", Detail: secret, Node: true}}, &contentError{err}, err,
			} {
				if _, text := Explain(e); strings.Contains(text, secret) || text == "" {
					t.Errorf("%s, %T: the answer is %q", class, e, text)
				}
			}
		}
		if text := reason(err); !strings.Contains(text, "EACCES") {
			t.Errorf("the reason is %q", text)
		}
	}
	for _, err := range []error{
		&fs.PathError{Op: "open", Path: secret, Err: fs.ErrClosed}, &os.LinkError{Op: "link", Old: secret, New: secret, Err: fs.ErrClosed},
	} {
		if _, text := Explain(&contentError{&checkout.Error{Class: checkout.Failed, Message: "the sentence", Detail: err.Error(), Err: err}}); strings.Contains(text, secret) {
			t.Errorf("the answer is %q", text)
		}
	}
	// What git says of a repository is for who asked.
	if _, text := Explain(&contentError{&checkout.Error{Class: checkout.NotFound, Message: "no commit", Detail: "not our ref"}}); !strings.Contains(text, "not our ref") {
		t.Errorf("the answer is %q", text)
	}
}

func TestASecretsKeysAreThoseOfGit(t *testing.T) {
	values := map[string][]byte{}
	for _, key := range []string{"token", "username", "password", "ssh-privatekey", "known_hosts"} {
		values[key] = []byte("value of " + key)
	}
	c := credential(secret.NewData(values))
	if c.Token != "value of token" || c.Username != "value of username" || c.Password != "value of password" ||
		string(c.SSHKey) != "value of ssh-privatekey" || string(c.KnownHosts) != "value of known_hosts" {
		t.Error("a value is in another place")
	}
}
