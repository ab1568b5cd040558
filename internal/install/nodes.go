package install

import corev1 "k8s.io/api/core/v1"

// ready tells whether a node's kubelet answers.
func ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
