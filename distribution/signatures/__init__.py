"""Signatures: summaries of a query task's subscriptions, by which distribution tasks send it fewer messages.

A signature may pass too many messages, never too few. It has two halves: cells of the world that a rectangle touches
(`distribution.signatures.spatial`), and keywords that are subscribed to there (`distribution.signatures.text`); both
are sets of numbers, kept in a filter (`distribution.signatures.cuckoo`) that is smaller than the set.
"""
