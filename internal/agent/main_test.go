package agent_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/datalayer/node-mounts/internal/simnode"
)

func TestMain(m *testing.M) {
	simnode.Main()
	if err := simnode.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
