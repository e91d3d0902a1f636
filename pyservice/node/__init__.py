"""The part of the service on each node of a cluster: routes for edge-guard, and archives for Pods."""
