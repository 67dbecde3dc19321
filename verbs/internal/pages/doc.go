// Package pages maps memory for RDMA devices.
package pages
