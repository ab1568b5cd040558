package agent_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/datalayer/node-mounts/internal/checkout"
	"github.com/datalayer/node-mounts/internal/keeper/keepertest"
	"github.com/datalayer/node-mounts/internal/simnode"
)

func TestMain(m *testing.M) {
	if code, ours := checkout.Main(os.Args); ours {
		os.Exit(code)
	}
	keepertest.Main()
	if dir := os.Getenv(folderEnv); dir != "" {
		if err := runFolder(dir); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == tenantArg {
		if err := runTenant(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "a tenant:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	simnode.Main()
	if dir := os.Getenv(storageEnv); dir != "" {
		if err := runServer(dir, os.Getenv(storageRulesEnv)); err != nil {
			fmt.Fprintln(os.Stderr, "the server of a storage:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := simnode.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
