"""Tables of several sites: rows, levels, formulas, and the design matrix that the pooled table would have had."""
