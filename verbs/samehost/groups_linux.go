package samehost

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// InGroup reports whether the peer is certainly in one of the groups of our user
// namespace: with its effective group, or one of its supplementary groups (Linux 4.13), as
// the kernel had them when it connected or began to listen.
func (c *Conn) InGroup(groups []uint32) bool {
	if len(groups) == 0 {
		return false
	}
	ofPeer := []uint32{c.peer.GID}
	c.raw.Control(func(fd uintptr) { ofPeer = append(ofPeer, peerGroups(int(fd))...) })
	return slices.ContainsFunc(groups, func(gid uint32) bool {
		return slices.Contains(ofPeer, gid) && checkGroup(gid) == nil
	})
}

// checkGroup returns nil if SO_PEERCRED tells a group from all others. The overflow group
// stands for all that our user namespace has no number for.
func checkGroup(gid uint32) error {
	text, err := os.ReadFile("/proc/sys/kernel/overflowgid")
	overflow, parseErr := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err == nil && parseErr == nil && uint32(overflow) != gid {
		return nil
	}
	if text, mapErr := os.ReadFile("/proc/self/gid_map"); mapErr == nil && mapsAllUsers(string(text)) {
		return nil
	}
	return fmt.Errorf("group %d: %w", gid, unix.EPERM)
}
