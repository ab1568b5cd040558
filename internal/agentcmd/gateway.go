package agentcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/datalayer/node-mounts/internal/advice"
)

const (
	// gatewayTimeout is how long the agent may take to describe its node: the
	// claim's bound, and what one node's table takes to read.
	gatewayTimeout = 20 * time.Second
	// maxDocument bounds what is read of an answer: 20,000 mounts of a long source.
	maxDocument = 64 << 20
)

func newGateway(env func(string) (string, bool)) *cobra.Command {
	options := slices.DeleteFunc(Options(), func(o Option) bool { return o.Flag != "health-port" })
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Print what the agent that runs here tells about its node",
		Long: `gateway prints, as JSON, what the agent in this container tells about its node:
whether it can serve, what the node is, and what is mounted for which Pod. It
names folders and Secrets, so the agent answers it on loopback alone: run this in
the agent's container.`,
		Example: `  kubectl -n datalayer-runtimes exec ds/datalayer-node-mounts -c driver -- node-mounts-agent gateway`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := resolveThese(options, lookUp(cmd), env)
			if err != nil {
				return err
			}
			if s.healthPort == 0 {
				return refuse(errors.New("the agent serves no port (--health-port 0)"), "give it one")
			}
			return printGateway(cmd.Context(), cmd.OutOrStdout(), s.healthPort)
		},
	}
	addFlags(cmd, options)
	return cmd
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Errorf("unexpected argument %.80q", args[0]), "every setting is a flag: see %s --help", cmd.CommandPath())
	}
	return nil
}

func printGateway(ctx context.Context, out io.Writer, port int) error {
	ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
	defer cancel()
	url := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + "/gateway"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	// No proxy: a variable that is meant for others must not send this elsewhere.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	const hint = "is an agent running in this container, and is its --health-port %d?"
	resp, err := client.Do(req)
	if os.IsTimeout(err) {
		return advice.Late(fmt.Errorf("ask the agent: %w", err), "look at its log: it does not answer")
	}
	if err != nil {
		return refuse(fmt.Errorf("ask the agent: %w", err), hint, port)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument))
	switch {
	case err != nil:
		return refuse(fmt.Errorf("read the agent's answer: %w", err), "ask again")
	case resp.StatusCode != http.StatusOK:
		return refuse(fmt.Errorf("the agent answers %s: %.200s", resp.Status, strings.TrimSpace(string(body))), hint, port)
	case !json.Valid(body):
		return refuse(errors.New("what answers is no agent: its answer is not JSON"), hint, port)
	}
	_, err = out.Write(body)
	return err
}
