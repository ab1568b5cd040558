package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/cli"
	"github.com/datalayer/node-mounts/internal/kube/kubetest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ran is what came of a command line.
type ran struct {
	status   int
	out, err string
}

func run(t *testing.T, args ...string) ran {
	t.Helper()
	return runUntil(t.Context(), args...)
}

func runUntil(ctx context.Context, args ...string) ran {
	var out, errs bytes.Buffer
	status := cli.Run(ctx, cli.Invocation{
		Args: append([]string{"node-mounts"}, args...), In: strings.NewReader(""), Out: &out, Err: &errs, Version: "v1.2.3",
	})
	return ran{status, out.String(), errs.String()}
}

// serve serves one Pod that asks for a folder, through the handler that wrap makes of
// the API's.
func serve(t *testing.T, wrap func(http.ResponseWriter, *http.Request, http.Handler)) (kubeconfig string) {
	t.Helper()
	names := grant.NamesFor("")
	text, err := grant.Encode([]grant.Mount{{Source: "x", Target: "x"}})
	must(t, err)
	client, err := kubetest.NewClient(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "sandbox", Namespace: "here", Annotations: map[string]string{names.Mounts: text},
	}})
	must(t, err)
	handler := kubetest.Handler(client)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { wrap(w, r, handler) }))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	must(t, writeKubeconfig(&rest.Config{Host: server.URL}, "here", kubeconfig))
	return kubeconfig
}

// api serves the Pod, and calls watched when somebody begins to wait.
func api(t *testing.T, watched func()) (kubeconfig string) {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Query().Get("watch") != "" {
			watched()
		}
		next.ServeHTTP(w, r)
	})
}

func TestAWaitThatIsInterruptedSaysSoAndNothingMore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	kubeconfig := api(t, cancel)
	got := runUntil(ctx, "wait", "sandbox", "--kubeconfig", kubeconfig)
	if want := (ran{1, "", "error: interrupted\n"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// mute serves the Pod of api until it was asked that often, and then accepts requests
// and answers none. It fails the test when somebody asks after having given one up.
func mute(t *testing.T, answered int32) (kubeconfig string) {
	t.Helper()
	var asked atomic.Int32
	var givenUp atomic.Bool
	return serve(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if asked.Add(1) <= answered {
			next.ServeHTTP(w, r)
			return
		}
		if givenUp.Load() {
			t.Errorf("%s %s after the time was over", r.Method, r.URL.Path)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		givenUp.Store(true)
	})
}

func TestATimeoutIsForAllThatACommandDoes(t *testing.T) {
	for name, args := range map[string][]string{
		"grant":  {"grant", "sandbox", "--source", "y", "--target", "y", "--wait"},
		"set":    {"grant", "sandbox", "--source", "y", "--target", "y", "--wait", "--replace"},
		"revoke": {"revoke", "sandbox", "x", "--wait"},
		"all":    {"revoke", "sandbox", "--all", "--wait"},
		"wait":   {"wait", "sandbox"},
	} {
		for answered := range int32(4) {
			t.Run(fmt.Sprintf("%s, %d answers", name, answered), func(t *testing.T) {
				t.Parallel()
				kubeconfig := mute(t, answered)
				got := run(t, append(args, "--timeout", "1s", "--request-timeout", "0", "--kubeconfig", kubeconfig, "-o", "json")...)
				if got.status != 4 || !strings.Contains(got.err, "within 1s") || !strings.Contains(got.err, "\nhint: ") {
					t.Errorf("%+v", got)
				}
				if strings.HasPrefix(got.err, "error: no answer") != (got.out != "") {
					t.Errorf("the document is %q, with\n%s", got.out, got.err)
				}
			})
		}
	}
}

// contested serves the Pod of api to which somebody else is always the first to write.
func contested(t *testing.T) (kubeconfig string) {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method != http.MethodPatch {
			next.ServeHTTP(w, r)
			return
		}
		status := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "sandbox", errors.New("modified")).Status()
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Code))
		_ = json.NewEncoder(w).Encode(&status)
	})
}

func TestAPodThatOthersAlwaysWriteFirstIsSaidToBeThat(t *testing.T) {
	got := run(t, "grant", "sandbox", "--source", "y", "--target", "y", "--wait", "--timeout", "1s", "--kubeconfig", contested(t))
	if got.status != 4 || !strings.HasPrefix(got.err, "error: within 1s: grant on Pod here/sandbox: ") || !strings.Contains(got.err, "modified") ||
		!strings.Contains(got.err, "\nhint: something writes the Pod all the time: ") {
		t.Errorf("%+v", got)
	}
}

func TestEveryCommandExplainsItself(t *testing.T) {
	for _, cmd := range commands(cli.Command()) {
		if cmd.Short == "" || cmd.RunE == nil && cmd.Run == nil {
			t.Errorf("%s has no description or does nothing", cmd.CommandPath())
		}
		if strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: %q", cmd.CommandPath(), cmd.Short)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s has no description", cmd.CommandPath(), f.Name)
			}
		})
		if got := run(t, append(strings.Fields(cmd.CommandPath())[1:], "--help")...); got.status != 0 || got.err != "" || !strings.Contains(got.out, "Usage:") {
			t.Errorf("%s --help: %+v", cmd.CommandPath(), got)
		}
	}
}

func commands(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		all = append(all, commands(c)...)
	}
	return all
}

func TestEveryCodeIsExplainedAndMistypedOnesAreFound(t *testing.T) {
	for _, c := range grant.Codes() {
		short := strings.TrimPrefix(string(c.Code), "NODE_MOUNT_GATEWAY_")
		for _, written := range []string{string(c.Code), short, strings.ToLower(short), strings.ReplaceAll(short, "_", "-")} {
			if got := run(t, "explain", written); got.status != 0 || !strings.Contains(got.out, c.Meaning) || !strings.Contains(got.out, c.Remedy) {
				t.Errorf("%s: %+v", written, got)
			}
		}
		mistyped := short[1:] + "X"
		if got := run(t, "explain", mistyped); got.status != 1 || !strings.Contains(got.err, "hint: did you mean "+short+"?") && len(short) > 4 {
			t.Errorf("%s: %+v", mistyped, got)
		}
	}
}

func TestTheExitStatusesAreTheOnesThatAreDocumented(t *testing.T) {
	for i, s := range cli.ExitStatuses() {
		if s.Status != i || s.Meaning == "" {
			t.Errorf("%+v is at %d", s, i)
		}
	}
	if n := len(cli.ExitStatuses()); n != 5 {
		t.Errorf("there are %d", n)
	}
}

func TestTheDemoShowsEverythingAsOneDocument(t *testing.T) {
	got := run(t, "demo", "-o", "json")
	if got.status != 0 || !strings.Contains(got.out, `"ok": true`) {
		t.Errorf("%+v", got)
	}
}
