package agentcmd

import (
	"testing"
	"time"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/delivery"
)

func TestExportsAndSecretsAreServedOnlyWhereTheyAreTurnedOn(t *testing.T) {
	for _, on := range []string{"false", "true"} {
		s := settle(t, map[string]string{"node-id": "a", "nfs": on, "credentials": on, "nfs-timeout": "90s"}, nil)
		pol, err := policy(s)
		if err != nil {
			t.Fatal(err)
		}
		if want := on == "true"; pol.Serves[grant.KindNFS] != want || pol.Credentials != want {
			t.Errorf("%s: nfs %v, credentials %v", on, pol.Serves[grant.KindNFS], pol.Credentials)
		}
		if !pol.Serves[grant.KindFiles] || pol.Serves[grant.KindGit] {
			t.Errorf("%s: serves %v", on, pol.Serves)
		}
		if e := s.exports(); e.HostProc != delivery.HostProc || e.SoftTimeout != 90*time.Second || e.Resolve == nil {
			t.Errorf("exports by %+v", e)
		}
	}
}
