package main

import (
	"net/http"
	"testing"

	"github.com/datalayer/node-mounts/runners/s3/internal/environment"
)

func TestTheBrokerAnswersOnlyItsOwnToken(t *testing.T) {
	e := startEndpoint(t, credentials{AccessKeyID: "AKIA", SecretAccessKey: "secret"})
	for _, name := range []string{"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_EC2_METADATA_DISABLED", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} {
		t.Setenv(name, "") // startBroker sets it, and it is put back
	}
	b, err := startBroker(environment.Source{URL: e.url, Token: endpointToken})
	must(t, err)
	for token, want := range map[string]int{"": 403, endpointToken: 403, b.token: 200} {
		request, err := http.NewRequest(http.MethodGet, b.url, nil)
		must(t, err)
		request.Header.Set("Authorization", token)
		response, err := http.DefaultClient.Do(request)
		must(t, err)
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("token %.4q…: status %d, want %d", token, response.StatusCode, want)
		}
	}
	for _, source := range []string{"", "http://169.254.170.2/x", "http://metadata.example/x", "https://127.0.0.1/x", "file:///etc/passwd"} {
		if _, err := startBroker(environment.Source{URL: source}); err == nil {
			t.Errorf("%q was taken", source)
		}
	}
}
