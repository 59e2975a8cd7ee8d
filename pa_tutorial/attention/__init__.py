"""Attention, stage by stage, in torch and plain Python."""
