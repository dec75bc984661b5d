"""Signatures: what a query task tells the distribution tasks of its subscriptions, so that they send it less.

A signature may let too much through, never too little. It has two halves: cells of the world that some rectangle
touches (`distribution.signatures.spatial`), and keywords that somebody there waits for
(`distribution.signatures.text`); both are sets of numbers, kept in a filter (`distribution.signatures.cuckoo`) that is
smaller than the set. Read on in `distribution.signatures.signature`, which keeps them up to date on both sides.
"""
