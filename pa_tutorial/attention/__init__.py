"""The mathematics of attention, stage by stage, in torch and plain Python."""
