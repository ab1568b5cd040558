package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

var (
	expecting = regexp.MustCompile(`expecting ['"]([a-z0-9-]+)['"]`)
	isRegion  = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
)

// said is what a server said of why it does not serve.
type said struct {
	status        int // 0: it said nothing
	code, message string
	region        string // that the bucket is in, where it is another
}

// heard takes a server's words for what they are: anybody's, who may be no S3 at all.
func (o options) heard(err error) said {
	var s said
	var response *smithyhttp.ResponseError
	if errors.As(err, &response) && response.Response != nil {
		s.status = response.HTTPStatusCode()
		s.region = response.Response.Header.Get("X-Amz-Bucket-Region")
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		if s.message = plain(api.ErrorMessage(), 200); isCode.MatchString(api.ErrorCode()) {
			s.code = api.ErrorCode()
		}
		if m := expecting.FindStringSubmatch(s.message); m != nil {
			s.region = m[1]
		}
	}
	if s.region == o.region || !isRegion.MatchString(s.region) {
		s.region = ""
	}
	return s
}

// explain turns the server's answer into a status and a sentence.
func (o options) explain(err error) error {
	where := "AWS in " + o.region
	if o.endpointURL != "" {
		where = o.endpointURL
	}
	if refused := (*refusedError)(nil); errors.As(err, &refused) {
		return &exitError{exitCredentialRefused, fmt.Sprintf("there is no credential for the bucket %s: %v", o.bucket, refused)}
	}
	s := o.heard(err)
	switch {
	case s.region != "":
		return &exitError{exitBucketWrong, fmt.Sprintf("the bucket %s is in region %s, not in %s: set region to %s", o.bucket, s.region, o.region, s.region)}
	case s.code == "NoSuchBucket":
		return &exitError{exitBucketWrong, fmt.Sprintf("%s has no bucket %s: correct the source of the grant, or region and endpoint-url of its Secret", where, o.bucket)}
	case s.code == "InvalidBucketName":
		return &exitError{exitBucketWrong, fmt.Sprintf("%s is no name of a bucket: correct the source of the grant", o.bucket)}
	case s.status/100 == 3:
		return &exitError{exitBucketWrong, fmt.Sprintf("the bucket %s is not in region %s, says %s, which sends requests elsewhere: set region and endpoint-url to where the bucket is", o.bucket, o.region, where)}
	case s.code == "ExpiredToken":
		return &exitError{exitCredentialRefused, fmt.Sprintf("the credential for the bucket %s has expired: write a new session into its Secret", o.bucket)}
	case s.status == http.StatusForbidden, s.status == http.StatusUnauthorized, s.code == "InvalidToken":
		return &exitError{exitCredentialRefused, fmt.Sprintf("%s refuses the credential for the bucket %s (%s): write one into its Secret that may list it", where, o.bucket, s.words())}
	case s.status != 0:
		return &exitError{exitFailed, fmt.Sprintf("%s answered %s: see what it is, and that it serves S3", where, s.words())}
	}
	return &exitError{exitFailed, fmt.Sprintf("%s cannot be asked: %s: %s", where, nameless(err), remedy(err))}
}

func (s said) words() string {
	switch {
	case s.code == "":
		return fmt.Sprintf("status %d", s.status)
	case s.message == "":
		return s.code
	}
	return s.code + ", " + s.message
}

// remedy is what helps where there was no answer.
func remedy(err error) string {
	var proxy proxyError
	switch {
	case errors.As(err, &proxy), isProxy(err):
		return "see the proxy that this node is told to use for buckets"
	case isCertificate(err):
		return "have its authority among those that this node trusts for buckets"
	}
	return "correct endpoint-url in the Secret, or let the node reach it"
}

func isCertificate(err error) bool {
	var (
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	return errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &invalid)
}

// plain is text of others on one line, of so many bytes at most: it is shown on terminals
// and read by line.
func plain(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsPrint(r) && r != utf8.RuneError:
			return r
		}
		return -1
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}
