"""The walk: its stages, and the problems and cases that they are tried on."""
