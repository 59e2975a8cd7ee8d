"""The walk: its stages, and the problems and cases that test them."""
