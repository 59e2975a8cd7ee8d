"""Measurements on this machine's CPU and GPU."""
