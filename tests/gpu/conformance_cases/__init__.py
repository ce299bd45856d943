"""Small CUDA kernels, each exercising one family of instructions alone, with inputs and numpy expectations.

They run on the simulator and on an H100; nothing here may know of gemmgen beyond the simulator's public names.
"""
