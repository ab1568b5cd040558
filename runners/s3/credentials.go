package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/datalayer/node-mounts/runners/s3/internal/environment"
)

const (
	// fresh is for how long credentials are used without being asked for again.
	fresh = time.Second
	// soon is how near their end they are asked for at every request: the ones that
	// follow them may be there already.
	soon = 5 * time.Second
	// askTimeout is how long an answer is waited for where there is nothing else to
	// use, and haveTimeout where the credentials at hand are still good: the endpoint
	// may be silent while the process behind it is replaced.
	askTimeout  = 5 * time.Second
	haveTimeout = time.Second
	// rest is for how long nobody waits again after an endpoint was silent.
	rest = 5 * time.Second
	// ahead is how long before their end the SDK asks for new credentials.
	ahead = 5 * time.Minute
)

// A broker stands between the SDK and the endpoint of credentials. The SDK would ask
// for credentials with an end of less than five minutes at every request, wait for the
// answer without a bound although those at hand are good, and keep credentials without
// an end for ever. The broker asks once a second at most, uses what it has while the
// endpoint is silent, and drops what the endpoint refuses.
type broker struct {
	from   environment.Source
	client *http.Client
	url    string // of the broker itself
	token  string

	mu      sync.Mutex
	have    aws.Credentials
	asked   time.Time // when have was answered
	silent  time.Time // when the endpoint last did not answer
	pending chan struct{}
	err     error // of the last answer
}

// A refusedError is the endpoint's answer that there are no credentials.
type refusedError struct {
	Status  int
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *refusedError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("the credential endpoint answered %d", e.Status)
	}
	return fmt.Sprintf("the credential endpoint answered %d: %s", e.Status, e.Message)
}

// startBroker serves until the process ends, and makes the broker what the SDK asks.
func startBroker(from environment.Source) (*broker, error) {
	u, err := url.Parse(from.URL)
	if err != nil || u.Host == "" {
		return nil, &exitError{exitUsage, "AWS_CONTAINER_CREDENTIALS_FULL_URI is missing or no URL: credentials come from nowhere else"}
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme != "http" || ip == nil || !ip.IsLoopback() {
		return nil, &exitError{exitUsage, "AWS_CONTAINER_CREDENTIALS_FULL_URI is no http URL of a loopback address"}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &broker{from: from, client: &http.Client{Transport: &http.Transport{}, Timeout: 60 * time.Second}, url: "http://" + l.Addr().String() + "/", token: rand.Text()}
	server := &http.Server{Handler: b, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(l) }() // as long as the process
	for name, value := range map[string]string{
		"AWS_CONTAINER_CREDENTIALS_FULL_URI": b.url,
		"AWS_CONTAINER_AUTHORIZATION_TOKEN":  b.token,
		"AWS_EC2_METADATA_DISABLED":          "true",
		"AWS_CONFIG_FILE":                    os.DevNull,
		"AWS_SHARED_CREDENTIALS_FILE":        os.DevNull,
	} {
		if err := os.Setenv(name, value); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (b *broker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte(b.token)) != 1 {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	c, err := b.Retrieve(r.Context())
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		// Not a status that the SDK would try again after.
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"code": "CredentialsUnavailable", "message": err.Error()})
		return
	}
	expires := time.Now().Add(ahead + fresh)
	if c.CanExpire && c.Expires.Before(expires) {
		expires = c.Expires
	}
	_ = json.NewEncoder(w).Encode(map[string]string{
		"AccessKeyId": c.AccessKeyID, "SecretAccessKey": c.SecretAccessKey, "Token": c.SessionToken,
		"Expiration": expires.UTC().Format(time.RFC3339Nano),
	})
}

// Retrieve implements [aws.CredentialsProvider].
func (b *broker) Retrieve(ctx context.Context) (aws.Credentials, error) {
	b.mu.Lock()
	good := b.goodFor(0)
	if b.goodFor(soon) && time.Since(b.asked) < fresh || good && time.Since(b.silent) < rest {
		defer b.mu.Unlock()
		return b.have, nil
	}
	if b.pending == nil {
		b.pending = make(chan struct{})
		go b.ask(b.pending)
	}
	pending := b.pending
	b.mu.Unlock()

	patience := askTimeout
	if good {
		patience = haveTimeout
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-pending:
	case <-timer.C:
	case <-ctx.Done():
		return aws.Credentials{}, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-pending:
		if b.err == nil {
			return b.have, nil
		}
		if refused := (*refusedError)(nil); errors.As(b.err, &refused) {
			return aws.Credentials{}, b.err
		}
	default:
		b.silent = time.Now()
	}
	if b.goodFor(0) {
		return b.have, nil
	}
	return aws.Credentials{}, errors.New("the credential endpoint does not answer")
}

// goodFor says whether the credentials at hand are good for so long from now.
func (b *broker) goodFor(long time.Duration) bool {
	return b.have.HasKeys() && (!b.have.CanExpire || time.Now().Add(long).Before(b.have.Expires))
}

func (b *broker) ask(done chan struct{}) {
	c, err := b.fetch()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	refused := (*refusedError)(nil)
	switch {
	case err == nil:
		b.have, b.asked, b.silent = c, time.Now(), time.Time{}
	case errors.As(err, &refused):
		b.have = aws.Credentials{}
	default:
		b.silent = time.Now()
	}
	b.pending = nil
	close(done)
}

func (b *broker) fetch() (aws.Credentials, error) {
	request, err := http.NewRequest(http.MethodGet, b.from.URL, nil)
	if err != nil {
		return aws.Credentials{}, err
	}
	request.Header.Set("Authorization", b.from.Token)
	request.Header.Set("Accept", "application/json")
	response, err := b.client.Do(request)
	if err != nil {
		return aws.Credentials{}, errors.New("the credential endpoint does not answer")
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return aws.Credentials{}, err
	}
	if response.StatusCode >= 500 {
		return aws.Credentials{}, fmt.Errorf("the credential endpoint answered %d", response.StatusCode)
	}
	if response.StatusCode != http.StatusOK {
		refused := &refusedError{}
		_ = json.Unmarshal(body, refused) // the status says enough
		refused.Status = response.StatusCode
		return aws.Credentials{}, refused
	}
	var answer struct {
		AccessKeyID     string `json:"AccessKeyId"`
		SecretAccessKey string
		Token           string
		Expiration      *time.Time
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.AccessKeyID == "" || answer.SecretAccessKey == "" {
		return aws.Credentials{}, &refusedError{Status: response.StatusCode, Message: "no credentials in the answer"}
	}
	c := aws.Credentials{AccessKeyID: answer.AccessKeyID, SecretAccessKey: answer.SecretAccessKey, SessionToken: answer.Token}
	if answer.Expiration != nil {
		c.CanExpire, c.Expires = true, *answer.Expiration
	}
	return c, nil
}
