package prefetch

// Line is how long a cache line is: that of amd64, and of most processors with arm64.
const Line = 64
