package checkout

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
)

// job is the work on one checkout: a folder beneath jobs, and what is known so far.
//
//	jobs/NAME            root's, 0711
//	  gitconfig ssh_config known_hosts ca.pem   root's, readable
//	  home               root's, empty
//	  keys               the socket of the ssh key, while it is served
//	  work               git's own: the temporary files, and
//	  work/tree          the repository
type job struct {
	store      *Store
	path       string
	remote     remote
	revision   string
	credential *Credential
	url        string // as the server answers to it
	addresses  []netip.Addr
	used       atomic.Bool // the server asked for the credential
	short      atomic.Bool // the disk was seen to be full
	freed      atomic.Bool // checkouts made way for it
	unproven   bool        // the server gave the commit without asking for it
	order      int         // among all flights of the store
	phase      atomic.Pointer[string]
	bytes      atomic.Int64
}

func (j *job) dir(name string) string { return filepath.Join(j.path, name) }

func (j *job) enter(phase string) { j.phase.Store(&phase) }

// prepare resolves the address and lays out the folder.
func (j *job) prepare(ctx context.Context) error {
	j.enter(PhaseResolving)
	c := &j.store.config
	var err error
	// With a proxy it is the proxy that looks names up, and decides.
	_, literal := j.remote.literal()
	if j.remote.transport == overSSH || c.Proxy == "" || literal {
		if j.addresses, err = c.Network.resolve(ctx, j.remote); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
	}
	if j.path, err = os.MkdirTemp(filepath.Join(c.Root, jobsFolder), "job-"); err != nil {
		return storage("make a folder for the checkout", err)
	}
	return storage("prepare the checkout", j.layOut())
}

func (j *job) layOut() error {
	c := &j.store.config
	// git passes through; what is in here is no secret.
	if err := os.Chmod(j.path, 0o711); err != nil {
		return err
	}
	if err := os.Mkdir(j.dir("home"), 0o555); err != nil {
		return err
	}
	files := map[string][]byte{"gitconfig": []byte(j.gitConfig())}
	if len(c.CA) > 0 {
		files["ca.pem"] = trusted(c.CA)
	}
	if j.remote.transport == overSSH {
		files["ssh_config"] = []byte(j.sshConfig(j.addresses[0]))
		files["known_hosts"] = j.credential.KnownHosts
	}
	for name, content := range files {
		if err := os.WriteFile(j.dir(name), content, 0o644); err != nil {
			return err
		}
	}
	// A repository is these: `git init` would be a process more.
	repository := filepath.Join("work", "tree", ".git")
	for _, dir := range []string{"work", "work/tree", repository, repository + "/objects", repository + "/refs"} {
		if err := os.Mkdir(j.dir(dir), 0o755); err != nil {
			return err
		}
		if err := os.Lchown(j.dir(dir), c.User, c.Group); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"HEAD":   "ref: refs/heads/checkout\n",
		"config": repositoryConfig,
	} {
		if err := os.WriteFile(j.dir(filepath.Join(repository, name)), []byte(content), 0o644); err != nil {
			return err
		}
		if err := os.Lchown(j.dir(filepath.Join(repository, name)), c.User, c.Group); err != nil {
			return err
		}
	}
	return nil
}

// systemCertificates is where Debian, Alpine and others have all that they trust.
const systemCertificates = "/etc/ssl/certs/ca-certificates.crt"

// trusted are the certificates of the system and ours: git's setting replaces the
// system's instead of adding to them.
func trusted(ca []byte) []byte {
	// A system without the file trusts ours alone.
	system, _ := os.ReadFile(systemCertificates)
	return append(append(system, '\n'), ca...)
}

// trust says where git finds the certificates. Left to itself, a curl with GnuTLS
// reads the file and then every file of the folder that it lies in, which have the
// same once more: 30 ms of a processor for each connection. Where the file is there,
// git is shown a folder that is empty.
func (j *job) trust(set func(key, value string)) {
	file := ""
	if _, err := os.Stat(systemCertificates); err == nil {
		file = systemCertificates
		set("http.sslCAPath", j.dir("home"))
	}
	if len(j.store.config.CA) > 0 {
		file = j.dir("ca.pem")
	}
	if file != "" {
		set("http.sslCAInfo", file)
	}
}

// gitConfig is the configuration of every run of the job. A file rather than
// arguments: a proxy's address may hold a password. The repository's own
// configuration is the few lines of layOut, and no content can reach it.
func (j *job) gitConfig() string {
	c := &j.store.config
	var b strings.Builder
	set := func(key, value string) {
		section, name := key[:strings.LastIndexByte(key, '.')], key[strings.LastIndexByte(key, '.')+1:]
		if first, sub, nested := strings.Cut(section, "."); nested {
			section = first + ` "` + sub + `"`
		}
		_, _ = fmt.Fprintf(&b, "[%s]\n\t%s = %s\n", section, name, quoteConfig(value))
	}
	for _, kv := range fixedConfig() {
		set(kv[0], kv[1])
	}
	if j.remote.transport == overHTTPS && j.credential != nil {
		set("credential.helper", helperPath())
	}
	set("http.proxy", c.Proxy)
	j.trust(set)
	if j.remote.transport == overSSH {
		set("core.sshCommand", "ssh -F "+quoteShell(j.dir("ssh_config")))
	}
	if _, literal := j.remote.literal(); !literal && len(j.addresses) > 0 {
		var all []string
		for _, a := range j.addresses {
			text := a.String()
			if a.Is6() {
				text = "[" + text + "]"
			}
			all = append(all, text)
		}
		set("http.curloptResolve", fmt.Sprintf("%s:%d:%s", j.remote.host, j.remote.port, strings.Join(all, ",")))
	}
	return b.String()
}

func fixedConfig() [][2]string {
	all := [][2]string{
		{"core.hooksPath", os.DevNull},
		{"core.attributesFile", os.DevNull},
		{"core.excludesFile", os.DevNull},
		{"core.fsmonitor", "false"},
		{"core.untrackedCache", "false"},
		{"core.protectHFS", "true"},
		{"core.protectNTFS", "true"},
		{"core.symlinks", "true"},
		{"core.autocrlf", "false"},
		{"core.logAllRefUpdates", "false"},
		{"core.sharedRepository", "umask"},
		{"protocol.allow", "never"},
		{"protocol.https.allow", "always"},
		{"protocol.ssh.allow", "always"},
		// A redirect would lead past the address that was checked. Alternates that a
		// server of the old protocol names count as redirects.
		{"http.followRedirects", "false"},
		{"http.sslVerify", "true"},
		{"http.emptyAuth", "false"},
		{"http.lowSpeedLimit", "1"},
		{"http.lowSpeedTime", "60"},
		{"ssh.variant", "ssh"},
		{"credential.helper", ""},
		{"transfer.fsckObjects", "true"},
		{"transfer.bundleURI", "false"},
		{"fetch.recurseSubmodules", "false"},
		{"submodule.recurse", "false"},
		// One pack instead of a file for each object: files are counted.
		{"fetch.unpackLimit", "1"},
		{"fetch.writeCommitGraph", "false"},
		// A file beyond this is never in memory as a whole: otherwise only files much
		// smaller than Limits.Memory could be fetched.
		{"core.bigFileThreshold", "16m"},
		{"gc.auto", "0"},
		{"maintenance.auto", "false"},
		{"pack.threads", "1"},
		{"index.threads", "1"},
		{"checkout.workers", "1"},
		{"advice.detachedHead", "false"},
	}
	// Old tools wrote these into histories that are in use to this day; none of them
	// changes what a checkout writes.
	for _, id := range []string{
		"badDate", "badDateOverflow", "badEmail", "badTimezone", "missingEmail", "missingNameBeforeEmail",
		"missingSpaceBeforeDate", "missingSpaceBeforeEmail", "zeroPaddedDate", "zeroPaddedFilemode", "badFilemode",
		"extraHeaderEntry", "badTagName", "missingTaggerEntry",
	} {
		all = append(all, [2]string{"fetch.fsck." + id, "ignore"})
	}
	return all
}

func quoteConfig(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// sshConfig pins the server's address and its key, and offers our key alone.
func (j *job) sshConfig(address netip.Addr) string {
	alias := j.remote.host
	if j.remote.port != 22 {
		// The form that known_hosts has for a port of its own.
		alias = "[" + alias + "]:" + strconv.Itoa(int(j.remote.port))
	}
	var b strings.Builder
	for _, kv := range [][2]string{
		{"HostName", address.String()},
		{"HostKeyAlias", alias},
		{"UserKnownHostsFile", quoteSSH(j.dir("known_hosts"))},
		{"GlobalKnownHostsFile", os.DevNull},
		{"StrictHostKeyChecking", "yes"},
		{"CheckHostIP", "no"},
		{"UpdateHostKeys", "no"},
		{"VerifyHostKeyDNS", "no"},
		{"IdentityAgent", quoteSSH(j.dir("keys"))},
		{"IdentityFile", "none"},
		{"PreferredAuthentications", "publickey"},
		{"PasswordAuthentication", "no"},
		{"KbdInteractiveAuthentication", "no"},
		{"GSSAPIAuthentication", "no"},
		{"BatchMode", "yes"},
		{"ConnectTimeout", "30"},
		{"ServerAliveInterval", "15"},
		{"ServerAliveCountMax", "4"},
		{"ForwardAgent", "no"},
		{"ForwardX11", "no"},
		{"ClearAllForwardings", "yes"},
		{"ControlMaster", "no"},
		{"ControlPath", "none"},
		{"ProxyCommand", "none"},
		{"PermitLocalCommand", "no"},
		{"LogLevel", "ERROR"},
	} {
		_, _ = fmt.Fprintf(&b, "%s %s\n", kv[0], kv[1])
	}
	return b.String()
}

// quoteSSH also keeps ssh from reading a "%" of a path as one of its own tokens.
func quoteSSH(s string) string { return `"` + strings.ReplaceAll(s, "%", "%%") + `"` }
