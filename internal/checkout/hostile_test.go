package checkout_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/test/gitserver"
)

// trap is a program that leaves a trace when anything runs it.
func trap(t *testing.T) (program, trace string) {
	t.Helper()
	dir := shortDir(t)
	traces := filepath.Join(dir, "traces")
	if err := os.Mkdir(traces, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(traces, 0o777); err != nil {
		t.Fatal(err)
	}
	program, trace = filepath.Join(dir, "trap"), filepath.Join(traces, "ran")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ntouch "+trace+"\ncat\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return program, trace
}

func TestAHostileRepositoryRunsNothingAndWritesNowhereElse(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	program, trace := trap(t)
	outside := filepath.Join(filepath.Dir(trace), "outside")
	if err := os.Mkdir(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	_ = os.Chmod(outside, 0o777)
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}

	server := w.https(&gitserver.HTTPS{})
	blob, script := repo.Blob("x"), repo.Blob("#!/bin/sh\ntouch "+trace+"\n")
	file := func(name, content string) gitserver.Entry {
		return gitserver.Entry{Mode: "100644", Name: name, ID: repo.Blob(content)}
	}
	link := func(name, to string) gitserver.Entry {
		return gitserver.Entry{Mode: "120000", Name: name, ID: repo.Blob(to)}
	}
	folder := func(name string, in ...gitserver.Entry) gitserver.Entry {
		return gitserver.Entry{Mode: "40000", Name: name, ID: repo.RawTree(in...)}
	}
	hook := folder("hooks", gitserver.Entry{Mode: "100755", Name: "post-checkout", ID: script})
	config := file("config", "[core]\n\tfsmonitor = "+program+"\n\thooksPath = hooks\n[filter \"evil\"]\n\tsmudge = "+program+"\n")
	other := repo.Files("other", map[string]string{"a": "b"})
	gitlink := func(name string) gitserver.Entry { return gitserver.Entry{Mode: "160000", Name: name, ID: other} }
	nested := func(depth int) gitserver.Entry {
		e := file("f", "x")
		for range depth {
			e = folder("d", e)
		}
		return e
	}

	for name, c := range map[string]struct {
		entries []gitserver.Entry
		refused bool
	}{
		"hooks and a configuration beside .git": {[]gitserver.Entry{config, hook}, false},
		"a bare repository inside":              {[]gitserver.Entry{folder("sub", file("HEAD", "ref: refs/heads/main\n"), config, hook, folder("objects"), folder("refs"))}, false},
		"filters": {[]gitserver.Entry{
			file(".gitattributes", "* filter=evil diff=evil merge=evil\n*.lfs filter=lfs\n"),
			file(".lfsconfig", "[lfs]\n\turl = https://127.0.0.1:1/\n"), file("a.lfs", "version https://git-lfs.github.com/spec/v1\n"),
		}, false},
		"a submodule of a command":         {[]gitserver.Entry{file(".gitmodules", "[submodule \"s\"]\n\tpath = s\n\turl = \"ext::sh -c "+program+"\"\n"), gitlink("s")}, false},
		"a submodule updated by a command": {[]gitserver.Entry{file(".gitmodules", "[submodule \"s\"]\n\tpath = s\n\turl = https://h/s\n\tupdate = !"+program+"\n"), gitlink("s")}, true},
		"a submodule into .git by a link": {[]gitserver.Entry{
			file(".gitmodules", "[submodule \"x/y\"]\n\tpath = A/modules/x\n\turl = https://h/s\n"),
			folder("A", folder("modules", gitlink("x"))), link("a", ".git"),
		}, false},
		"a submodule's path that ends in CR": {[]gitserver.Entry{
			file(".gitmodules", "[submodule \"s\"]\n\tpath = \"sub\r\"\n\turl = https://h/s\n"), link("sub", ".git/modules/sub/hooks"), gitlink("sub\r"),
		}, false},
		"a submodule's name with dots":      {[]gitserver.Entry{file(".gitmodules", "[submodule \"../../x\"]\n\tpath = s\n\turl = https://h/s\n"), gitlink("s")}, true},
		"a link for .gitmodules":            {[]gitserver.Entry{link(".gitmodules", "x"), file("x", "y")}, true},
		"a folder .git":                     {[]gitserver.Entry{folder(".git", config, hook)}, true},
		"a link .git":                       {[]gitserver.Entry{link(".git", "elsewhere"), folder("elsewhere", config, hook)}, true},
		"a folder .GIT":                     {[]gitserver.Entry{folder(".GIT", config, hook)}, true},
		"a folder .Git below":               {[]gitserver.Entry{folder("a", folder(".Git", config, hook))}, true},
		"the short name of .git":            {[]gitserver.Entry{folder("git~1", config, hook)}, true},
		"a stream of .git":                  {[]gitserver.Entry{folder(".git::$INDEX_ALLOCATION", config, hook)}, true},
		".git with a space":                 {[]gitserver.Entry{folder(".git ", config, hook)}, true},
		".git with a letter of no width":    {[]gitserver.Entry{folder(".g\u200cit", config, hook)}, true},
		"a backslash":                       {[]gitserver.Entry{file("a\\..\\..\\x", "x")}, false},
		"dots":                              {[]gitserver.Entry{folder("..", file("x", "x"))}, true},
		"one dot":                           {[]gitserver.Entry{folder(".", file("x", "x"))}, true},
		"a slash":                           {[]gitserver.Entry{file("../../x", "x")}, true},
		"an absolute name":                  {[]gitserver.Entry{file(outside+"/x", "x")}, true},
		"a link and a folder of its name":   {[]gitserver.Entry{link("a", outside), folder("a", file("x", "x"))}, true},
		"a link and a folder, out of order": {[]gitserver.Entry{link("a", outside), file("b", "x"), folder("a", file("x", "x"))}, true},
		"links out":                         {[]gitserver.Entry{link("abs", victim), link("rel", "../../../../../../../"+victim), link("self", "self")}, false},
		"a setuid mode":                     {[]gitserver.Entry{{Mode: "104755", Name: "su", ID: blob}}, false},
		"a fifo's mode":                     {[]gitserver.Entry{{Mode: "10644", Name: "fifo", ID: other}}, false},
		"a device's mode":                   {[]gitserver.Entry{{Mode: "60644", Name: "dev", ID: other}}, false},
		"a deep tree":                       {[]gitserver.Entry{nested(1200)}, false},
		"a tree deeper than a path":         {[]gitserver.Entry{nested(2500)}, true},
		"a name longer than a name":         {[]gitserver.Entry{file(strings.Repeat("n", 300), "x")}, true},
		"names that look like flags":        {[]gitserver.Entry{file("--upload-pack="+filepath.Base(program), "x"), file("-f", "x")}, false},
	} {
		sha := repo.Commit(fmt.Sprint("c-", len(name), "-", strings.Map(letters, name)), repo.RawTree(c.entries...))
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, repos: w.repos, root: filepath.Join(shortDir(t), "s"), log: w.log, clock: w.clock}
			w.open([]*gitserver.HTTPS{server})
			ask := checkout.Request{URL: server.URL(repo.Name), Revision: sha}
			if c.refused {
				t.Log(w.failure(ask, checkout.Invalid))
			} else {
				inspect(t, w.mustGet(ask))
			}
			if _, err := os.Lstat(trace); err == nil {
				t.Error("something of the repository ran")
				_ = os.Remove(trace)
			}
			if names := list(t, outside); len(names) != 1 {
				t.Errorf("written elsewhere: %v", names)
			}
			info, err := os.Stat(victim)
			if err != nil || info.Mode().Perm() != 0o600 || info.Sys().(*syscall.Stat_t).Uid != 0 {
				t.Errorf("a file elsewhere was changed: %v %v", info, err)
			}
			w.nothingLeft()
		})
	}
}

func letters(r rune) rune {
	if r >= 'a' && r <= 'z' {
		return r
	}
	return -1
}

// inspect sees that a published tree has plain things only, and a repository that
// names no program.
func inspect(t *testing.T, c *checkout.Checkout) {
	t.Helper()
	err := filepath.WalkDir(c.Path, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(p)
		if err != nil {
			return err
		}
		if mode := info.Mode(); mode&(os.ModeSetuid|os.ModeSetgid|os.ModeSticky|os.ModeDevice|os.ModeNamedPipe|os.ModeSocket) != 0 {
			t.Errorf("%s is %v", p, mode)
		}
		return nil
	})
	if err != nil && !strings.Contains(err.Error(), "too long") {
		t.Error(err)
	}
	if got := content(t, c, ".git/config"); strings.Count(got, "\n") != 4 || !strings.HasPrefix(got, "[core]") {
		t.Errorf("the repository's configuration is not ours: %q", got)
	}
	for _, name := range list(t, filepath.Join(c.Path, ".git")) {
		switch name {
		case "HEAD", "config", "index", "objects", "refs", "shallow":
		default:
			t.Errorf(".git holds %s", name)
		}
	}
}

// Whatever the agent was started with: none of it reaches git.
func TestTheAgentsEnvironmentDoesNotReachGit(t *testing.T) {
	program, trace := trap(t)
	home := shortDir(t)
	text := "[core]\n\thooksPath = " + filepath.Dir(program) + "\n\tfsmonitor = " + program + "\n[filter \"evil\"]\n\tsmudge = " + program +
		"\n[credential]\n\thelper = !" + program + "\n[url \"https://127.0.0.1:1/\"]\n\tinsteadOf = https://\n"
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	repo := w.repository()
	sha := repo.Files("main", map[string]string{".gitattributes": "* filter=evil\n", "f": "x"})
	server := w.https(private(&gitserver.HTTPS{}))
	for name, value := range map[string]string{
		"HOME": home, "XDG_CONFIG_HOME": home, "GIT_CONFIG_GLOBAL": home + "/.gitconfig", "GIT_SSH_COMMAND": program, "GIT_ASKPASS": program,
		"SSH_ASKPASS": program, "GIT_TRACE": trace, "GIT_TRACE_CURL": trace, "GIT_PROXY_COMMAND": program, "https_proxy": "http://127.0.0.1:1",
		"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.hooksPath", "GIT_CONFIG_VALUE_0": filepath.Dir(program),
		"GIT_DIR": home, "GIT_WORK_TREE": home, "GIT_EXEC_PATH": home, "GIT_TEMPLATE_DIR": home, "GIT_SSL_NO_VERIFY": "1",
	} {
		t.Setenv(name, value)
	}
	w.open([]*gitserver.HTTPS{server})
	c := w.mustGet(checkout.Request{URL: server.URL(repo.Name), Revision: sha, Credential: &checkout.Credential{Token: canary}})
	inspect(t, c)
	if _, err := os.Lstat(trace); err == nil {
		t.Error("something of the environment took effect")
	}
}
