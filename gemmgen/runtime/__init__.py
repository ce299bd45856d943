"""From CUDA text to a launch: NVRTC, the disk cache, tensor maps, and the two targets, a GPU and the simulator.

Importing this package loads neither torch nor CUDA; its modules do so when they are first used.
"""
