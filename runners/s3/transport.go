package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/rclone/rclone/fs"
)

// transport carries every request to the server, the SDK's and rclone's. None waits
// longer than its limit for the next byte: whoever waits for it holds what others need.
type transport struct {
	over   *http.Transport
	health *health // is told of each answer that did not come; nil before the bucket is served
}

func newTransport(o options) (*transport, error) {
	roots, err := authorities(o.caFile)
	if err != nil {
		return nil, err
	}
	over := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		IdleConnTimeout:     time.Minute,
		MaxIdleConnsPerHost: 16,
		ForceAttemptHTTP2:   true,
		TLSClientConfig:     &tls.Config{RootCAs: roots},
	}
	if o.proxy != nil {
		over.Proxy = http.ProxyURL(o.proxy)
		over.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, answer *http.Response) error {
			if answer.StatusCode != http.StatusOK {
				return proxyError(answer.StatusCode)
			}
			return nil
		}
	}
	return &transport{over: over}, nil
}

// authorities are the system's and those of the file.
func authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil // the system's
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the file of --ca-file cannot be read: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("the system's certificates cannot be read: %w", err)
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("the file of --ca-file has no certificate in it")
	}
	return roots, nil
}

// client makes the transport's client. It follows no redirect: the request has the
// session's token in it, and where it leads nobody has looked at. S3's own, to the
// region that has the bucket, is told to the user.
func (t *transport) client() *http.Client {
	return &http.Client{Transport: t, CheckRedirect: stay}
}

func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// under makes rclone's requests the transport's too. rclone has no other way to bound
// a request than one for all, and none to add authorities to the system's.
func (t *transport) under(files fs.Fs) error {
	field := reflect.Indirect(reflect.ValueOf(files)).FieldByName("srv")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*http.Client]() || field.IsNil() {
		return errors.New("this version of rclone has its client elsewhere")
	}
	client := (*http.Client)(field.UnsafePointer())
	client.Transport, client.CheckRedirect = t, stay
	return nil
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	late := lateError{}
	limit := answerTimeout
	if request.Method == http.MethodPut || request.Method == http.MethodPost {
		// Another attempt may go to a server that lives: it is not given up at the first.
		late.again, limit = true, storeTimeout
	} else if t.health != nil && !t.health.isGood() {
		limit = healthTimeout // one call may make several requests
	}
	ctx, cancel := context.WithCancelCause(request.Context())
	w := &watch{limit: limit, timer: time.AfterFunc(limit, func() {
		cancel(late)
		if t.health != nil {
			t.health.doubt()
		}
	})}
	sent := request.WithContext(ctx)
	if request.Body != nil && request.Body != http.NoBody {
		sent.Body = &sending{request.Body, w}
	}
	response, err := t.over.RoundTrip(sent)
	w.pause()
	if err != nil {
		err = told(ctx, err)
		cancel(nil)
		return nil, err
	}
	response.Body = &receiving{response.Body, w, ctx, cancel}
	return response, nil
}

// told is the error, or that the answer was late where that is why.
func told(ctx context.Context, err error) error {
	if late, ok := context.Cause(ctx).(lateError); ok && err != nil && !errors.Is(err, io.EOF) { //nolint:errorlint // it is the cause itself
		return late
	}
	return err
}

// A watch ends a request after limit without a byte.
type watch struct {
	limit time.Duration
	mu    sync.Mutex
	timer *time.Timer
	rests bool
}

// moved says that a byte has gone.
func (w *watch) moved() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.rests {
		w.timer.Reset(w.limit)
	}
}

// pause is called where nobody waits for the server.
func (w *watch) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rests = true
	w.timer.Stop()
}

func (w *watch) resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rests = false
	w.timer.Reset(w.limit)
}

// sending is the content of a request.
type sending struct {
	io.ReadCloser
	watch *watch
}

func (s *sending) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.watch.moved() // what was read before has been taken
	return n, err
}

// receiving is the content of an answer. Whoever reads it may be slow.
type receiving struct {
	io.ReadCloser
	watch  *watch
	ctx    context.Context //nolint:containedctx // the request's
	cancel context.CancelCauseFunc
}

func (r *receiving) Read(p []byte) (int, error) {
	r.watch.resume()
	n, err := r.ReadCloser.Read(p)
	r.watch.pause()
	return n, told(r.ctx, err)
}

func (r *receiving) Close() error {
	r.watch.pause()
	err := r.ReadCloser.Close()
	r.cancel(nil)
	return err
}

// A lateError is an answer that did not come. The SDK and rclone try again where the
// methods say that they may.
type lateError struct{ again bool }

func (lateError) Error() string         { return "the server does not answer" }
func (e lateError) Timeout() bool       { return e.again }
func (e lateError) Temporary() bool     { return e.again }
func (e lateError) CanceledError() bool { return !e.again }

// Is makes all of them one.
func (lateError) Is(target error) bool { _, ok := target.(lateError); return ok }

var errLate = lateError{}

// A proxyError is the status that a proxy answered with.
type proxyError int

func (e proxyError) Error() string { return fmt.Sprintf("the proxy answered with status %d", int(e)) }
