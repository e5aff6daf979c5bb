"""Sparse training: masks, growth and drop rules, topology evolution, `sparsify`, accounting."""
