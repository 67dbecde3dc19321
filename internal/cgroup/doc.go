// Package cgroup makes control groups (version 2) for tests, in which processes can be started.
package cgroup
