"""Figures: one shared style, drawn from real layouts, state and traces."""
