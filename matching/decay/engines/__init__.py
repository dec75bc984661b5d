"""Indexes over subscriptions to fading results: whom may a message reach?"""
