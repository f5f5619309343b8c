"""Memory: regions of addresses and the tensors over them. The only code that calls a driver."""
