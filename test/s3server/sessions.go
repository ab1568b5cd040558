package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
	"time"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3err"
)

// credentials are named as the keys of the Secret that a Pod owns.
type credentials struct {
	AccessKeyID     string `json:"access-key-id"`
	SecretAccessKey string `json:"secret-access-key"`
	SessionToken    string `json:"session-token,omitempty"`
	// Expiration is RFC 3339 in UTC, with fractions of a second.
	Expiration string `json:"expiration,omitempty"`
}

// scope is what credentials may do: with no bucket every bucket.
type scope struct {
	bucket   string
	readOnly bool
}

type session struct {
	credentials
	scope
	expires time.Time // zero: never
}

// sessions is the gateway's IAM: temporary credentials that end, and permanent ones.
type sessions struct {
	auth.IAMService // what the gateway's own API of accounts asks: nothing here
	mu              sync.Mutex
	byKey           map[string]session
}

func newSessions() *sessions {
	return &sessions{IAMService: auth.NewIAMServiceSingle(auth.Account{}), byKey: map[string]session{}}
}

// add makes credentials: permanent ones where ttl is 0.
func (s *sessions) add(of scope, ttl time.Duration) credentials {
	made := session{scope: of, credentials: credentials{AccessKeyID: "AKIA" + strings.ToUpper(random(8)), SecretAccessKey: random(20)}}
	if ttl != 0 {
		made.expires = time.Now().Add(ttl)
		made.AccessKeyID = "ASIA" + made.AccessKeyID[4:]
		made.SessionToken = random(64)
		made.Expiration = made.expires.UTC().Format(time.RFC3339Nano)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byKey[made.AccessKeyID] = made
	return made.credentials
}

// revoke says whether there was such a key.
func (s *sessions) revoke(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.byKey[key]
	delete(s.byKey, key)
	return known
}

func (s *sessions) find(key string) (session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, known := s.byKey[key]
	return found, known
}

// DeriveSigningKey answers for sessions and for permanent keys alike; an expired
// session is refused as S3 does, by status 400 and not 403.
func (s *sessions) DeriveSigningKey(key, token, date, region, service string) ([]byte, auth.Account, error) {
	found, known := s.find(key)
	switch {
	case !known:
		return nil, auth.Account{}, auth.ErrNoSuchUser
	case !hmac.Equal([]byte(token), []byte(found.SessionToken)):
		return nil, auth.Account{}, auth.ErrInvalidSessionToken
	case !found.expires.IsZero() && !time.Now().Before(found.expires):
		return nil, auth.Account{}, s3err.APIError{Code: "ExpiredToken", Description: "The provided token has expired.", HTTPStatusCode: 400}
	}
	signing := []byte("AWS4" + found.SecretAccessKey)
	for _, part := range []string{date, region, service, "aws4_request"} {
		mac := hmac.New(sha256.New, signing)
		mac.Write([]byte(part))
		signing = mac.Sum(nil)
	}
	return signing, auth.Account{Access: key, Role: auth.RoleAdmin, IsSession: token != "", SessionToken: token}, nil
}

// GetUserAccount implements [auth.IAMService].
func (s *sessions) GetUserAccount(key string) (auth.Account, error) {
	if _, known := s.find(key); !known {
		return auth.Account{}, auth.ErrNoSuchUser
	}
	return auth.Account{Access: key, Role: auth.RoleAdmin}, nil
}

// random returns 2n hexadecimal digits.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}
