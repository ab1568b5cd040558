// Package environment keeps what was inherited from the libraries that read it before
// main: rclone's packages look for a configuration file and for options in variables
// while they are initialized. Go initializes packages in the order of their import
// paths as far as imports allow; this one imports nothing that they do not, and its
// path sorts before theirs. A test sets a variable that would show if it came late.
package environment

import (
	"os"
	"strings"
)

// Credentials are where credentials are asked for, and the token for it.
var Credentials = take()

// Proxy is the URL of a proxy for all requests to the server, "" for none. It is no flag:
// there may be a password in it, and everybody can read a program's arguments.
var Proxy = proxy()

func proxy() string { return os.Getenv("NODE_MOUNTS_S3_PROXY") }

// Source is an endpoint of container credentials.
type Source struct{ URL, Token string }

func take() Source {
	s := Source{URL: os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI"), Token: os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN")}
	if s.URL == "" {
		return s // not started as the runner is; main says so
	}
	var kept []string
	for _, variable := range os.Environ() {
		if strings.HasPrefix(variable, "NODE_MOUNTS_") {
			kept = append(kept, variable)
		}
	}
	os.Clearenv()
	for _, variable := range kept {
		name, value, _ := strings.Cut(variable, "=")
		_ = os.Setenv(name, value) // it came from the environment
	}
	// Without these rclone asks a program for the user's home, and says so.
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"} {
		_ = os.Setenv(name, "/nonexistent") // no value is refused
	}
	_ = os.Setenv("RCLONE_CONFIG", os.DevNull)
	return s
}
