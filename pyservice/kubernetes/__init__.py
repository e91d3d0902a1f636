"""Game servers as Pods of a Kubernetes cluster: access to its API, manifests, states and runs."""
