"""Engines of `decay`: which subscriptions may a message reach?"""
