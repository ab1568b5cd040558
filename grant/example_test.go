package grant_test

import (
	"fmt"

	"github.com/datalayer/node-mounts/grant"
)

// A writer grants a home folder, and knows which answer to wait for.
func ExampleEncode() {
	mounts := []grant.Mount{{
		Kind: grant.KindFiles, Source: "home/users/01H-eric", Target: "eric",
		Mode: grant.ReadWrite, AllowExec: true,
	}}
	annotation, err := grant.Encode(mounts)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(annotation)
	fmt.Println(grant.Decode(annotation).Hash)
	// Output:
	// {"hash":"390f038b6f69688e","mounts":[{"allow_exec":true,"kind":"files","mode":"rw","source":"home/users/01H-eric","target":"eric","uid":""}]}
	// 390f038b6f69688e
}

// One bad entry is refused under its target, and costs the other nothing.
func ExampleDecode() {
	set := grant.Decode(`[{"source":"data/mnist","target":"mnist","mode":"ro"},
		{"source":"../etc","target":"etc"}]`)
	for _, m := range set.Mounts {
		fmt.Println(m.Target, m.Mode, m.Source)
	}
	for _, r := range set.Refused {
		fmt.Println(r.Key, r.Code)
	}
	// Output:
	// mnist ro data/mnist
	// etc NODE_MOUNT_GATEWAY_INVALID_SOURCE
}
