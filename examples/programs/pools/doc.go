// Package pools shows that clients with pools notice, before they use it, that an idle
// connection was closed by its server: over streams as over TCP.
package pools
