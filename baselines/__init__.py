"""Baselines: engines and window indexes that are neither a default nor a system of one of the five papers.

They stand for what the papers compare with, and for the plainest way to do a thing, and exist to be measured and to
check others by: `skyray bench KIND`, `--engine KIND=NAME`, `--window-index KIND=NAME`. Like all engines they give
exactly the answers of `matching.naive`. A run that names none of them imports nothing of this package.
"""
