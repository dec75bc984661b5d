"""Boolean subscriptions: a region and keywords that must all be contained. Start in `matching.boolean.engine`."""
