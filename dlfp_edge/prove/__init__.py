"""Proof of what the default does: a matrix of comparisons with bars, and simulated GPUs at the paper's points."""
