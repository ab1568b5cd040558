package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"github.com/gofiber/fiber/v3"
)

// gate is what every request passes before the gateway: it counts, does the faults
// that were asked for, and keeps scoped credentials to their bucket.
type gate struct {
	faults   *faults
	sessions *sessions

	mu     sync.Mutex
	counts map[string]int
}

var credential = regexp.MustCompile(`Credential=([^/,]+)/`)

func (g *gate) serve(c fiber.Ctx) error {
	defer drain(c)
	bucket, key, _ := strings.Cut(strings.TrimPrefix(c.Path(), "/"), "/")
	operation := operationOf(c, key)
	g.count(operation)
	if g.faults.meet(operation) {
		return answer(c, http.StatusServiceUnavailable, "SlowDown", "Reduce your request rate.")
	}
	if m := credential.FindStringSubmatch(c.Get("Authorization")); m != nil {
		found, known := g.sessions.find(m[1])
		writes := c.Method() != http.MethodGet && c.Method() != http.MethodHead
		if known && (found.bucket != "" && found.bucket != bucket || found.readOnly && writes) {
			g.count("refused")
			return answer(c, http.StatusForbidden, "AccessDenied", "Access Denied.")
		}
	}
	err := c.Next()
	status := c.Response().StatusCode()
	if status == http.StatusForbidden || status == http.StatusUnauthorized ||
		status == http.StatusBadRequest && strings.Contains(string(c.Response().Body()), "<Code>ExpiredToken</Code>") {
		g.count("refused")
	}
	return err
}

// drain reads what an answer has left of a body, which would be taken for the next
// request. It is only asked for when the answer is made: the gateway may have let go
// of it by then.
func drain(c fiber.Ctx) {
	if body := c.Request().BodyStream(); body != nil && c.Request().Header.ContentLength() > 0 {
		_, _ = io.Copy(io.Discard, body) // the client has gone
	}
}

func (g *gate) count(what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counts[what]++
}

// stats returns how often each operation was asked since the start.
func (g *gate) stats() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[string]int{}
	for _, name := range append(operations, "refused") {
		all[name] = 0
	}
	maps.Copy(all, g.counts)
	return all
}

var operations = []string{"get", "head", "list", "put", "copy", "multipart", "delete", "other"}

func operationOf(c fiber.Ctx, key string) string {
	query := c.Queries()
	has := func(name string) bool { _, there := query[name]; return there }
	switch method := c.Method(); {
	case method == http.MethodHead:
		return "head"
	case method == http.MethodGet && key != "" && !has("uploadId"):
		return "get"
	case method == http.MethodGet && (has("list-type") || has("prefix") || has("delimiter") || has("max-keys")):
		return "list"
	case has("uploads") || has("uploadId"):
		return "multipart"
	case method == http.MethodPut && c.Get("X-Amz-Copy-Source") != "":
		return "copy"
	case method == http.MethodPut && key != "":
		return "put"
	case method == http.MethodDelete || method == http.MethodPost && has("delete"):
		return "delete"
	}
	return "other"
}

func answer(c fiber.Ctx, status int, code, message string) error {
	c.Set("Content-Type", "application/xml")
	c.Status(status)
	return c.SendString(fmt.Sprintf("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>%s</Message></Error>", code, message))
}
