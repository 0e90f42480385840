"""The proof: a matrix of comparisons, each with what the default must reach in it."""
