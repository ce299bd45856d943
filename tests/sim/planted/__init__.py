"""Our own kernels with a mistake planted in their PTX: the proof that the simulator finds what it claims to find."""
