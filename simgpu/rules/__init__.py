"""The rules of CUDA about devices, each with the words in which CUDA refuses."""
