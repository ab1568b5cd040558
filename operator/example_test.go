package operator_test

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/operator"
)

// A pooled Pod is handed to a person: their home is granted beside what the Pod
// has, and the launch goes on when the agent says that it is there.
func Example() {
	cfg, err := clientcmd.BuildConfigFromFlags("", clientcmd.RecommendedHomeFile)
	if err != nil {
		fmt.Println(err)
		return
	}
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	client := operator.New(api.CoreV1(), grant.NamesFor(grant.DefaultPrefix))

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pod := operator.Pod{Namespace: "datalayer-runtimes", Name: "pool-7x2vq", UID: "5f0c3f1e-2d6a-4c55-9e0e-6a0f6c1d7b42"}
	asked, err := client.Add(ctx, pod, grant.Mount{
		Kind: grant.KindFiles, Source: "home/users/01H-eric", Target: "eric",
		Mode: grant.ReadWrite, AllowExec: true,
	})
	if err != nil {
		fmt.Println(err) // a *grant.Refusal, ErrGone, ErrEnding, or the API's
		return
	}
	answer, err := client.Wait(ctx, asked)
	if err != nil {
		fmt.Println(err)
		return
	}
	for target, code := range answer.Failed {
		fmt.Println(target, code, answer.Messages[target])
	}
}
