"""Ranks as real processes: started by PyTorch's elastic launcher from a preloaded one."""
