"""The kernels of the GPU, in Triton's interpreter. They run in a process of their own, since relpos
and Triton decide when they are imported where they compute: test_process.py starts it."""
