"""Baseline engines of `boolean`: one file each."""
