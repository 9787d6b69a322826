"""Other processes: what children are told, what a fork loses, tensors that are sent, process groups without NCCL."""
