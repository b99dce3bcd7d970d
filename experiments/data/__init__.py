"""Recorded data, read from the folder that ``TVBO_DATA`` names, and digits."""
