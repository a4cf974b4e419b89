"""Rehearsals: a full profile's own code path, on a CPU and in seconds, with stand-ins for its data and weights."""
