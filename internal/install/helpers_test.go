package install_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func quantity(t *testing.T, text string) *resource.Quantity {
	t.Helper()
	q, err := resource.ParseQuantity(text)
	must(t, err)
	return &q
}
