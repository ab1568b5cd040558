package checkout

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// curl reads the file and every file of the folder beside it, which has the same
// certificates once more: half of the time that a fetch of a small repository takes.
func TestTheSystemsCertificatesAreReadOnce(t *testing.T) {
	pem, err := os.ReadFile(systemCertificates)
	if err != nil {
		t.Fatalf("%v: install ca-certificates", err)
	}
	mine := "-----BEGIN CERTIFICATE-----\nmine\n-----END CERTIFICATE-----\n"
	for name, c := range map[string]struct{ ca, file string }{
		"the system's alone":    {"", string(pem)},
		"the system's and ours": {mine, string(pem) + "\n" + mine},
	} {
		t.Run(name, func(t *testing.T) {
			j := laidOut(t, c.ca)
			file, err := os.ReadFile(configured(t, j, "http.sslCAInfo"))
			if err != nil || string(file) != c.file {
				t.Errorf("git trusts %d bytes of certificates, expected %d: %v", len(file), len(c.file), err)
			}
			if found, err := os.ReadDir(configured(t, j, "http.sslCAPath")); err != nil || len(found) != 0 {
				t.Errorf("git reads more certificates from a folder: %d, %v", len(found), err)
			}
		})
	}
}

// laidOut is a job for an https repository, with its files.
func laidOut(t *testing.T, ca string) *job {
	t.Helper()
	where, err := parseRemote("https://git.example.org/team/tutorial.git")
	if err != nil {
		t.Fatal(err)
	}
	c := Config{User: os.Getuid(), Group: os.Getgid(), CA: []byte(ca)}
	j := &job{store: &Store{config: c}, path: filepath.Join(t.TempDir(), "job"), remote: where}
	if err := os.Mkdir(j.path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := j.layOut(); err != nil {
		t.Fatal(err)
	}
	return j
}

// configured is what git reads for a key in the job's configuration.
func configured(t *testing.T, j *job, key string) string {
	t.Helper()
	out, err := exec.Command("git", "config", "--file", j.dir("gitconfig"), "--get", key).Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		t.Fatalf("%s is not set", key)
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(out), "\n")
}
