"""C++ kernels for CPUs: sources, building, loading, FFI calls and plain-XLA fallbacks."""
