// Package obs is how the agent is watched: its metrics, its HTTP endpoints and
// its log.
package obs
