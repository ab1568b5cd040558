package main

import (
	"reflect"
	"strings"
	"testing"
)

func mustParse(t *testing.T, text string, args map[string]string) recipe {
	t.Helper()
	r, err := parse(text, args)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOnlyTheLastStageCounts(t *testing.T) {
	r := mustParse(t, `
ARG GO=1
FROM --platform=$BUILDPLATFORM golang:${GO} AS build
ENV FIRST=yes
COPY a relative
VOLUME /what/this/builder/does/not/know
FROM scratch
ENV SECOND=yes
`, nil)
	if r.from != "scratch" || len(r.steps) != 0 || !reflect.DeepEqual(r.env, []string{"SECOND=yes"}) {
		t.Errorf("got %+v", r)
	}
}

func TestSettingsAreReadAsDockerReadsThem(t *testing.T) {
	r := mustParse(t, `FROM scratch
ARG VERSION=unknown
ARG REVISION=unknown
# a comment
ENV HOME=/home/ada
ENV CACHE=$HOME/cache
LABEL title="Two words"
LABEL version=${VERSION}
LABEL revision=${REVISION}
USER 1000:100
WORKDIR $HOME
ENTRYPOINT ["/bin/a", "b c"]
CMD ["d"]
`, map[string]string{"VERSION": "v1"})
	want := recipe{
		from:       "scratch",
		env:        []string{"HOME=/home/ada", "CACHE=/home/ada/cache"},
		labels:     map[string]string{"title": "Two words", "version": "v1", "revision": "unknown"},
		entrypoint: []string{"/bin/a", "b c"},
		cmd:        []string{"d"},
		user:       "1000:100",
		workdir:    "/home/ada",
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got  %+v\nwant %+v", r, want)
	}
}

func TestContinuedLinesAreOneInstructionWithTheNumberOfTheFirst(t *testing.T) {
	r := mustParse(t, "FROM x\n\nRUN --mount=type=bind,target=/t \\\n  # why\n    /t/install \\\n    now\nCOPY a /b\n", nil)
	if len(r.steps) != 2 || r.steps[0].run != "/t/install now" || r.steps[0].line != 3 || r.steps[1].line != 7 {
		t.Errorf("got %+v", r.steps)
	}
}

func TestCopyKeepsItsOptions(t *testing.T) {
	r := mustParse(t, "FROM x\nCOPY --from=build --chmod=1755 --chown=1000:100 /out/ more /usr/local/bin/\n", nil)
	got := r.steps[0]
	if got.stage != "build" || !got.chmod || got.mode != 0o1755 || got.uid != 1000 || got.gid != 100 ||
		!reflect.DeepEqual(got.sources, []string{"/out/", "more"}) || got.target != "/usr/local/bin/" {
		t.Errorf("got %+v", got)
	}
}

// What is passed over in silence would make an image that differs from Docker's.
func TestWhatIsNotUnderstoodIsRefusedWithItsLine(t *testing.T) {
	for name, line := range map[string]string{
		"an instruction":          "VOLUME /data",
		"an option of COPY":       "COPY --link a /b",
		"a name as owner":         "COPY --chown=ada:users a /b",
		"a symbolic mode":         "COPY --chmod=u+x a /b",
		"COPY in JSON form":       `COPY ["a", "/b"]`,
		"a relative target":       "COPY a b",
		"several into one file":   "COPY a b /c",
		"a relative WORKDIR":      "WORKDIR home",
		"an undeclared variable":  "ENV A=$NOBODY",
		"a default in a variable": "ENV A=${HOME:-/root}",
		"two settings in a line":  "ENV A=1 B=2",
		"the shell form":          "ENTRYPOINT /bin/agent",
		"a second FROM, empty":    "FROM",
	} {
		_, err := parse("FROM x\n"+line+"\n", nil)
		if err == nil {
			t.Errorf("%s: %s was taken", name, line)
			continue
		}
		if !strings.HasPrefix(err.Error(), "2: ") {
			t.Errorf("%s: %v does not name the line", name, err)
		}
	}
	for _, text := range []string{"", "# nothing\n", "RUN make\n"} {
		if _, err := parse(text, nil); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
