"""What CUDA accepts: every rule about devices, in the words in which CUDA refuses."""
