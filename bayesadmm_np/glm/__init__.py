"""Generalised linear models from sums over sites: kinds, statistics, separation, what is wrong with the data."""
