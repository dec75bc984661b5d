"""Engines of `knn`: which subscriptions may a message reach?"""
