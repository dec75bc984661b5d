"""Indexes over subscriptions to nearest messages: whom may a message reach?"""
