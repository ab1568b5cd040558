package checkout_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/test/gitserver"
)

func TestAPathThatNoProgramCanNameIsRefusedBeforeItIsKept(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	blob := repo.Blob("x")
	deep := repo.RawTree(gitserver.Entry{Mode: "100644", Name: "f", ID: blob})
	for range 20 {
		deep = repo.RawTree(gitserver.Entry{Mode: "40000", Name: strings.Repeat("d", 250), ID: deep})
	}
	huge := repo.Commit("huge", repo.RawTree(gitserver.Entry{Mode: "100644", Name: strings.Repeat("n", 32<<20), ID: blob}))
	long := repo.Commit("long", repo.RawTree(gitserver.Entry{Mode: "100644", Name: strings.Repeat("n", 256), ID: blob}))
	fits := repo.Files("fits", map[string]string{strings.Repeat("n", 255): "x"})
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := w.failure(checkout.Request{URL: server.URL(repo.Name), Revision: huge}, checkout.Invalid)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("a name of 32 MiB cost the agent %d MiB", took>>20)
	}
	if !strings.Contains(err.Error(), "4095") || strings.Contains(err.Error(), "nnnn") {
		t.Errorf("%v", err)
	}
	for _, sha := range []string{long, repo.Commit("deep", deep)} {
		if err := w.failure(checkout.Request{URL: server.URL(repo.Name), Revision: sha}, checkout.Invalid); !strings.Contains(err.Error(), "4095") {
			t.Errorf("it was written, and is refused for that: %v", err)
		}
	}
	w.mustGet(checkout.Request{URL: server.URL(repo.Name), Revision: fits})
}

func TestALimitThatIsPassedIsNamed(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) { c.Limits.Bytes, c.Limits.Inodes = 3<<20, 100 })
	many := map[string]string{}
	for i := range 150 {
		many[fmt.Sprint(i)] = ""
	}
	for sha, want := range map[string]string{
		repo.Files("many", many): "100 (git.checkoutFiles)",
		repo.Files("large", map[string]string{"f": strings.Repeat("\x00", 4<<20)}): "3Mi (git.checkoutSize)",
	} {
		err := w.failure(checkout.Request{URL: server.URL(repo.Name), Revision: sha}, checkout.TooLarge)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}

func TestAllCheckoutsTogetherHaveALimitAndThoseInUseStay(t *testing.T) {
	w := newWorld(t)
	repo := w.repository()
	server := w.https(&gitserver.HTTPS{})
	// Each is about 1 MiB: the file, and the pack that has half of it again.
	w.open([]*gitserver.HTTPS{server}, func(c *checkout.Config) { c.Limits.Total = 2500 << 10 })
	get := func(i int) (*checkout.Checkout, error) {
		sha := repo.Files(fmt.Sprint("b", i), map[string]string{"f": noise(640 << 10)})
		return w.get(checkout.Request{URL: server.URL(repo.Name), Revision: sha, Use: fmt.Sprint(i)})
	}
	var paths []string
	for i := range 2 {
		c, err := get(i)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, c.Path)
	}
	_, err := get(2)
	if checkout.ClassOf(err) != checkout.DiskFull || !strings.Contains(err.Error(), "2500Ki (git.checkoutsTotal)") {
		t.Errorf("a third one: %v", err)
	}
	w.nothingLeft()
	for _, p := range paths {
		if _, err := os.Stat(p); err != nil {
			t.Errorf("one in use went: %v", err)
		}
	}
	w.store.Release("0")
	if _, err := get(3); err != nil {
		t.Errorf("nobody uses the first any more: %v", err)
	}
	if _, err := os.Stat(paths[0]); err == nil {
		t.Error("nothing made way")
	}
	if _, err := os.Stat(paths[1]); err != nil {
		t.Errorf("one in use went: %v", err)
	}
}

func TestAValueOfASecretThatNoServerTakesIsRefusedAtOnce(t *testing.T) {
	w := newWorld(t)
	server := w.https(&gitserver.HTTPS{})
	w.open([]*gitserver.HTTPS{server})
	long := strings.Repeat("k", 60<<10)
	for name, c := range map[string]checkout.Credential{
		"token": {Token: long}, "password": {Password: long}, "username": {Username: long, Token: "t"}, "colon": {Username: "a:b", Token: "t"},
		"key": {Token: "t", SSHKey: []byte(long + long)}, "hosts": {Token: "t", KnownHosts: []byte(long + long)},
	} {
		err := w.failure(checkout.Request{URL: server.URL("r"), Revision: strings.Repeat("ab", 20), Credential: &c}, checkout.AuthRefused)
		if strings.Contains(err.Error(), "kkk") || server.Count("refs") != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
