package delivery

import (
	"errors"
	"fmt"
	"io/fs"
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
		if Pause(err, 1) < 2*time.Second || Pause(err, 99) < Pause(err, 1) || Pause(err, 99) > 10*time.Minute {
			t.Errorf("%s is tried again after %s, and later %s", class, Pause(err, 1), Pause(err, 99))
		}
	}
	if _, text := Explain(&contentError{&checkout.Error{
		Class: checkout.Failed, Message: "the node could not work", Detail: "open /node/path: permission denied",
		Err: &fs.PathError{Op: "open", Path: "/node/path", Err: unix.EACCES},
	}}); strings.Contains(text, "/node/path") || !strings.Contains(text, "EACCES") {
		t.Errorf("the message is %q", text)
	}
	if Pause(errors.New("another"), 1) != 0 {
		t.Error("other failures wait as long as a checkout")
	}
}

func TestTooLargeIsNotDownloadedAgainAtOnce(t *testing.T) {
	if p := Pause(&contentError{&checkout.Error{Class: checkout.TooLarge}}, 1); p < time.Minute {
		t.Errorf("it is after %s", p)
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
