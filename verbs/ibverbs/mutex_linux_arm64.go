package ibverbs

// mutexBytes is the size of pthread_mutex_t, which structures of the library contain.
const mutexBytes = 48
