"""Figures after the papers and our own: `figure(name, folder)` of a kind measures, checks and draws one."""
