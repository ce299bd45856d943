"""gemmgen: a Python spec of a GEMM-shaped pipeline becomes CUDA and a torch-callable."""
